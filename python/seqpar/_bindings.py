"""Made by generate_bindings.py from the public headers; not edited by hand."""

from ctypes import (Structure, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_ubyte, c_uint,
                    c_uint8, c_void_p)

CONSTANTS = {
    "SEQPAR_VERSION_MAJOR": 0,
    "SEQPAR_VERSION_MINOR": 2,
    "SEQPAR_VERSION_PATCH": 0,
    "SEQPAR_VERSION_CODE": 200,
    "SEQPAR_MOST_BUFFER_BYTES": 281474976710656,
    "SEQPAR_STRUCT_MAGIC": 1397834066,
    "SEQPAR_SCAN_RESET_IN": 1,
    "SEQPAR_SCAN_CUT": 2,
    "SEQPAR_SCAN_ALGORITHMS": 7,
    "SEQPAR_HOST_DEVICE": -1,
    "SEQPAR_CONFIG_UNDEF_INT": -2147483648,
    "SEQPAR_UNIQUE_ID_BYTES": 128,
    "SEQPAR_SPLIT_NOCOLOR": -1,
    "SEQPAR_MOST_COMPARED": 48,
    "SEQPAR_NO_PEER": -1,
    "SEQPAR_RING_MOST_TENSORS": 64,
    "SEQPAR_LINK_CLASSES": 3,
    "SEQPAR_MOVES": 5,
    "SEQPAR_DIMS": 5,
    "SEQPAR_MESH_OPERATIONS": 7,
    "SEQPAR_MESH_PARTS": 8,
    "SEQPAR_SHORT_CONV_WIDTH": 8,
    "SEQPAR_ATTN_ALGORITHMS": 20,
    "SEQPAR_ATTN_NO_WINDOW": -1,
}

ENUMS = {
    "seqparResult_t": {
        "seqparSuccess": 0,
        "seqparUnhandledCudaError": 1,
        "seqparSystemError": 2,
        "seqparInternalError": 3,
        "seqparInvalidArgument": 4,
        "seqparInvalidUsage": 5,
        "seqparRemoteError": 6,
        "seqparInProgress": 7,
    },
    "seqparDataType_t": {
        "seqparFloat32": 0,
        "seqparFloat16": 1,
        "seqparBfloat16": 2,
    },
    "seqparScanOp_t": {
        "seqparScanSum": 0,
        "seqparScanScalar": 1,
        "seqparScanDiag": 2,
        "seqparScanMatrix": 3,
    },
    "seqparDirection_t": {
        "seqparForward": 0,
        "seqparReverse": 1,
    },
    "seqparDecayForm_t": {
        "seqparDecayLinear": 0,
        "seqparDecayLog": 1,
        "seqparDecayLog2": 2,
    },
    "seqparScanAlgorithm_t": {
        "seqparScanAuto": 0,
        "seqparScanChain": 1,
        "seqparScanOneshot": 2,
        "seqparScanTransposed": 3,
        "seqparScanDoubling": 4,
        "seqparScanHier": 5,
        "seqparScanLasp1": 6,
        "seqparScanLasp2": 7,
    },
    "seqparTransport_t": {
        "seqparTransportAuto": 0,
        "seqparTransportShared": 1,
        "seqparTransportNetwork": 2,
    },
    "seqparComparedKind_t": {
        "seqparComparedNumber": 0,
        "seqparComparedReal": 1,
        "seqparComparedArray": 2,
    },
    "seqparLayoutKind_t": {
        "seqparContiguous": 0,
        "seqparZigzag": 1,
        "seqparStriped": 2,
    },
    "seqparLinkClass_t": {
        "seqparLinkProcess": 0,
        "seqparLinkNode": 1,
        "seqparLinkNetwork": 2,
    },
    "seqparMove_t": {
        "seqparMoveShift": 0,
        "seqparMoveRing": 1,
        "seqparMoveAllGather": 2,
        "seqparMoveReduceScatter": 3,
        "seqparMoveAllToAll": 4,
    },
    "seqparDim_t": {
        "seqparDimTensor": 0,
        "seqparDimUlysses": 1,
        "seqparDimRing": 2,
        "seqparDimData": 3,
        "seqparDimPipeline": 4,
    },
    "seqparMeshAxis_t": {
        "seqparMeshAxisQ": 0,
        "seqparMeshAxisKv": 1,
    },
    "seqparMeshPass_t": {
        "seqparMeshForward": 0,
        "seqparMeshBackward": 1,
    },
    "seqparMeshOperation_t": {
        "seqparMeshCompute": 0,
        "seqparMeshRecvQ": 1,
        "seqparMeshRecvKv": 2,
        "seqparMeshRecvOdoq": 3,
        "seqparMeshSendO": 4,
        "seqparMeshSendDq": 5,
        "seqparMeshSendDkv": 6,
    },
    "seqparAttnFamily_t": {
        "seqparAttnSoftmax": 0,
        "seqparAttnGla": 1,
        "seqparAttnScalar": 2,
        "seqparAttnFixed": 3,
        "seqparAttnSum": 4,
    },
    "seqparAttnAlgorithm_t": {
        "seqparAttnAuto": 0,
        "seqparAttnLocal": 1,
        "seqparAttnRing": 2,
        "seqparAttnRingPassQ": 3,
        "seqparAttnZigzag": 4,
        "seqparAttnStriped": 5,
        "seqparAttnBurst": 6,
        "seqparAttnDoubleRing": 7,
        "seqparAttnAllGatherKv": 8,
        "seqparAttnUlysses": 9,
        "seqparAttnUsp": 10,
        "seqparAttnMesh": 11,
        "seqparAttnAttention2d": 12,
        "seqparAttnDistAttn": 13,
        "seqparAttnStarTrail": 14,
        "seqparAttnRingSelfAttention": 15,
        "seqparAttnMegatronSp": 16,
        "seqparAttnZeco": 17,
        "seqparAttnLasp1": 18,
        "seqparAttnLasp2": 19,
    },
    "seqparAttnMask_t": {
        "seqparAttnFull": 0,
        "seqparAttnCausal": 1,
    },
}


class seqparAllScanParams_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("op", c_int),
        ("direction", c_int),
        ("heads", c_int64),
        ("dk", c_int64),
        ("dv", c_int64),
        ("stateType", c_int),
        ("wireType", c_int),
        ("decayForm", c_int),
        ("sequences", c_int64),
        ("flags", c_void_p),
        ("algorithm", c_int),
        ("blocks", c_int),
    ]


class seqparScanEstimate_t(Structure):
    _fields_ = [
        ("algorithm", c_int),
        ("blocks", c_int),
        ("modelUs", c_double),
    ]


class seqparConfig_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("timeoutMs", c_int),
        ("transport", c_int),
        ("device", c_int),
        ("checkArguments", c_int),
        ("hostId", c_char_p),
        ("interfaceName", c_char_p),
        ("ctas", c_int),
    ]


class seqparUniqueId(Structure):
    _fields_ = [
        ("internal", c_ubyte * 128),
    ]


class seqparOob_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("rank", c_int),
        ("nranks", c_int),
        ("allgather", c_void_p),
        ("context", c_void_p),
    ]


class seqparCompared_t(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int),
        ("number", c_int64),
        ("real", c_double),
        ("array", c_void_p),
    ]


class seqparCommInfo_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("rank", c_int),
        ("nranks", c_int),
        ("device", c_int),
        ("nodes", c_int),
        ("node", c_int),
        ("directPeers", c_int),
        ("networkPeers", c_int),
        ("alphaUs", c_double),
        ("bandwidth", c_double),
        ("overheadUs", c_double),
        ("contention", c_double),
        ("transport", c_char * 128),
        ("reason", c_char * 512),
        ("sharing", c_int),
    ]


class seqparLayout_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("kind", c_int),
        ("ranks", c_int),
        ("tokens", c_int64),
        ("stripe", c_int64),
        ("slices", c_int),
        ("sequences", c_int64),
        ("cuSeqlens", c_void_p),
    ]


class seqparLayoutRun_t(Structure):
    _fields_ = [
        ("local", c_int64),
        ("global", c_int64),
        ("length", c_int64),
        ("count", c_int64),
        ("stride", c_int64),
    ]


class seqparHeadShards_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("dataType", c_int),
        ("batch", c_int64),
        ("heads", c_int64),
        ("queryHeads", c_int64),
        ("headDim", c_int64),
        ("tokens", c_int64),
        ("tokensOfMembers", c_void_p),
        ("group", c_void_p),
        ("groupSize", c_int),
    ]


class seqparShards_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("dataType", c_int),
        ("outer", c_int64),
        ("tokens", c_int64),
        ("inner", c_int64),
        ("tokensOfMembers", c_void_p),
        ("group", c_void_p),
        ("groupSize", c_int),
    ]


class seqparHalo_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("left", c_int64),
        ("right", c_int64),
        ("periodic", c_int),
    ]


class seqparRingParams_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("direction", c_int),
        ("ranks", c_void_p),
        ("nranks", c_int),
        ("inner", c_int),
        ("unchanged", c_int),
        ("keepHome", c_int),
        ("steps", c_int),
        ("tensors", c_int),
        ("bytes", c_void_p),
        ("uneven", c_int),
        ("home", c_void_p),
        ("scratch", c_void_p),
    ]


class seqparRingInfo_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("nranks", c_int),
        ("place", c_int),
        ("steps", c_int),
        ("step", c_int),
        ("posted", c_int),
        ("source", c_int),
        ("engine", c_char * 64),
        ("reason", c_char * 128),
    ]


class seqparShiftParams_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("sendPeer", c_int),
        ("sendTensors", c_int),
        ("sendBuffers", c_void_p),
        ("sendBytes", c_void_p),
        ("receivePeer", c_int),
        ("receiveTensors", c_int),
        ("receiveBuffers", c_void_p),
        ("receiveBytes", c_void_p),
    ]


class seqparLinkInfo_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("pairs", c_int),
        ("remembered", c_int),
        ("alphaUs", c_double),
        ("bandwidth", c_double),
        ("overheadUs", c_double),
    ]


class seqparGrid_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("extent", c_int * 5),
        ("order", c_int * 5),
    ]


class seqparMeshParams_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("tokens", c_int64),
        ("heads", c_int64),
        ("kvHeads", c_int64),
        ("headDim", c_int64),
        ("valueDim", c_int64),
        ("dataType", c_int),
        ("wireType", c_int),
        ("causal", c_int),
        ("sendDelta", c_int),
        ("forwardUs", c_double),
        ("backwardUs", c_double),
        ("latencyUs", c_double),
        ("bandwidth", c_double),
        ("forwardWeight", c_int),
        ("backwardWeight", c_int),
    ]


class seqparMeshEstimate_t(Structure):
    _fields_ = [
        ("a", c_int),
        ("b", c_int),
        ("forwardBytes", c_int64),
        ("backwardBytes", c_int64),
        ("forwardUs", c_double),
        ("backwardUs", c_double),
        ("forwardExposedUs", c_double),
        ("backwardExposedUs", c_double),
    ]


class seqparMeshTile_t(Structure):
    _fields_ = [
        ("q", c_int),
        ("kv", c_int),
    ]


class seqparMeshStep_t(Structure):
    _fields_ = [
        ("operation", c_int),
        ("index", c_int),
        ("firstTile", c_int),
        ("tileCount", c_int),
    ]


class seqparMeshPart_t(Structure):
    _fields_ = [
        ("send", c_void_p),
        ("sendBytes", c_size_t),
        ("receive", c_void_p),
        ("receiveBytes", c_size_t),
    ]


class seqparMeshReduceOParams_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("carry", c_void_p),
        ("carryLse", c_void_p),
        ("tokens", c_int64),
        ("carryTokens", c_int64),
        ("heads", c_int64),
        ("dim", c_int64),
        ("dataType", c_int),
        ("wireType", c_int),
    ]


class seqparMeshSum_t(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("count", c_size_t),
        ("carry", c_void_p),
        ("carryCount", c_size_t),
    ]


class seqparMeshReduceScatterOParams_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("result", c_void_p),
        ("resultLse", c_void_p),
        ("tokens", c_void_p),
        ("heads", c_int64),
        ("dim", c_int64),
        ("dataType", c_int),
    ]


class seqparShortConvDesc_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("tokensOfRanks", c_void_p),
        ("sequences", c_int64),
        ("cuSeqlens", c_void_p),
        ("channels", c_int64),
        ("width", c_int),
        ("silu", c_int),
        ("dataType", c_int),
        ("weightType", c_int),
        ("training", c_int),
    ]


class seqparShortConvBackwardArgs_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("dy", c_void_p),
        ("dx", c_void_p),
        ("dWeight", c_void_p),
        ("dBias", c_void_p),
    ]


class seqparAttnTensor_t(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("batchStride", c_int64),
        ("tokenStride", c_int64),
        ("headStride", c_int64),
    ]


class seqparAttnTile_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("batch", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
        ("heads", c_int64),
        ("kvHeads", c_int64),
        ("headDim", c_int64),
        ("valueDim", c_int64),
        ("lower", c_int64),
        ("upper", c_int64),
        ("dataType", c_int),
        ("scale", c_float),
        ("softcap", c_float),
        ("q", seqparAttnTensor_t),
        ("k", seqparAttnTensor_t),
        ("v", seqparAttnTensor_t),
        ("out", seqparAttnTensor_t),
        ("lse", c_void_p),
        ("lseBatchStride", c_int64),
        ("lseHeadStride", c_int64),
        ("dOut", seqparAttnTensor_t),
        ("dq", seqparAttnTensor_t),
        ("dk", seqparAttnTensor_t),
        ("dv", seqparAttnTensor_t),
    ]


class seqparAttnKernel_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("forward", c_void_p),
        ("backward", c_void_p),
        ("self", c_void_p),
    ]


class seqparAttnDesc_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("family", c_int),
        ("algorithm", c_int),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("layout", c_void_p),
        ("tokensOfRanks", c_void_p),
        ("kvTokens", c_int64),
        ("kvLayout", c_void_p),
        ("sequences", c_int64),
        ("cuSeqlens", c_void_p),
        ("heads", c_int64),
        ("kvHeads", c_int64),
        ("headDim", c_int64),
        ("valueDim", c_int64),
        ("dataType", c_int),
        ("gateType", c_int),
        ("wireType", c_int),
        ("scale", c_float),
        ("mask", c_int),
        ("windowLeft", c_int64),
        ("windowRight", c_int64),
        ("softcap", c_float),
        ("sinks", c_int),
        ("inner", c_int),
        ("ulyssesOutside", c_int),
        ("training", c_int),
        ("deterministic", c_int),
        ("kernel", c_void_p),
        ("reserve", c_int),
    ]


class seqparAttnForwardArgs_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("q", seqparAttnTensor_t),
        ("k", seqparAttnTensor_t),
        ("v", seqparAttnTensor_t),
        ("out", seqparAttnTensor_t),
        ("lse", c_void_p),
        ("sinks", c_void_p),
        ("gate", seqparAttnTensor_t),
        ("initial", c_void_p),
        ("saved", c_void_p),
        ("final", c_void_p),
        ("reserve", c_void_p),
    ]


class seqparAttnBackwardArgs_t(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("q", seqparAttnTensor_t),
        ("k", seqparAttnTensor_t),
        ("v", seqparAttnTensor_t),
        ("out", seqparAttnTensor_t),
        ("lse", c_void_p),
        ("sinks", c_void_p),
        ("gate", seqparAttnTensor_t),
        ("saved", c_void_p),
        ("initial", c_void_p),
        ("dOut", seqparAttnTensor_t),
        ("dFinal", c_void_p),
        ("dq", seqparAttnTensor_t),
        ("dk", seqparAttnTensor_t),
        ("dv", seqparAttnTensor_t),
        ("dGate", seqparAttnTensor_t),
        ("dSinks", c_void_p),
        ("dInitial", c_void_p),
        ("reserve", c_void_p),
    ]


# Values of the initializers, for the fields behind size, magic and version.
INITIALIZERS = {
    "seqparAllScanParams_t": (2, 0, 0, 0, 0, 0, 0, 0, 1, None, 0, 0),
    "seqparConfig_t": (-2147483648, -2147483648, -2147483648, -2147483648, None, None, -2147483648),
    "seqparOob_t": (0, 1, 0, None),
    "seqparCommInfo_t": (0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, b'', b'', 0),
    "seqparLayout_t": (0, 1, 0, 1, 1, 0, None),
    "seqparHeadShards_t": (0, 1, 1, 0, 0, 0, None, None, 0),
    "seqparShards_t": (0, 1, 0, 1, None, None, 0),
    "seqparHalo_t": (0, 0, 0),
    "seqparRingParams_t": (0, None, 0, 0, 1, 0, 0, 0, None, 0, None, None),
    "seqparRingInfo_t": (0, 0, 0, 0, 0, 0, b'', b''),
    "seqparShiftParams_t": (-1, 0, None, None, -1, 0, None, None),
    "seqparLinkInfo_t": (0, 0, 0.0, 0.0, 0.0),
    "seqparGrid_t": ((1, 1, 1, 1, 1), (0, 1, 2, 3, 4)),
    "seqparMeshParams_t": (1, 1, 0, 1, 0, 2, 0, 0, 1, 0.0, 0.0, 0.0, 0.0, 1, 1),
    "seqparMeshReduceOParams_t": (None, None, None, None, 0, 0, 1, 1, 0, 0),
    "seqparMeshReduceScatterOParams_t": (None, None, None, None, None, 1, 1, 0),
    "seqparShortConvDesc_t": (1, 0, None, 0, None, 0, 4, 1, 0, 0, 1),
    "seqparShortConvBackwardArgs_t": (None, None, None, None, None, None, None),
    "seqparAttnKernel_t": (0, 0, None),
    "seqparAttnDesc_t": (0, 0, 1, 0, None, None, 0, None, 0, None, 1, 0, 0, 0, 0, 0, 0, 0.0, 0, -1, -1, 0.0, 0, 0, 0, 1, 0, None, 0),
    "seqparAttnForwardArgs_t": ((None, 0, 0, 0), (None, 0, 0, 0), (None, 0, 0, 0), (None, 0, 0, 0), None, None, (None, 0, 0, 0), None, None, None, None),
    "seqparAttnBackwardArgs_t": ((None, 0, 0, 0), (None, 0, 0, 0), (None, 0, 0, 0), (None, 0, 0, 0), None, None, (None, 0, 0, 0), None, None, (None, 0, 0, 0), None, (None, 0, 0, 0), (None, 0, 0, 0), (None, 0, 0, 0), (None, 0, 0, 0), None, None, None),
}

# What each function returns and takes.
PROTOTYPES = {
    "seqparGetErrorString": (c_char_p, [c_int]),
    "seqparGetLastError": (c_char_p, [c_void_p]),
    "seqparGetVersion": (c_int, [c_void_p]),
    "seqparAllScan": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparAllScanPlan": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparScanAlgorithmName": (c_char_p, [c_int]),
    "seqparGetUniqueId": (c_int, [c_void_p]),
    "seqparCommInitRank": (c_int, [c_void_p, c_int, seqparUniqueId, c_int]),
    "seqparCommInitRankConfig": (c_int, [c_void_p, c_int, seqparUniqueId, c_int, c_void_p]),
    "seqparCommInitEnv": (c_int, [c_void_p, c_void_p]),
    "seqparCommInitAll": (c_int, [c_void_p, c_int, c_void_p]),
    "seqparCommInitNccl": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparCommInitOob": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparCommSplit": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p]),
    "seqparCommBarrier": (c_int, [c_void_p]),
    "seqparCommCompare": (c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    "seqparCommFinalize": (c_int, [c_void_p]),
    "seqparCommDestroy": (c_int, [c_void_p]),
    "seqparCommAbort": (c_int, [c_void_p]),
    "seqparCommGetAsyncError": (c_int, [c_void_p, c_void_p]),
    "seqparCommCount": (c_int, [c_void_p, c_void_p]),
    "seqparCommUserRank": (c_int, [c_void_p, c_void_p]),
    "seqparCommDevice": (c_int, [c_void_p, c_void_p]),
    "seqparCommQuery": (c_int, [c_void_p, c_void_p]),
    "seqparMemAlloc": (c_int, [c_void_p, c_size_t, c_void_p]),
    "seqparMemFree": (c_int, [c_void_p]),
    "seqparStreamCreate": (c_int, [c_void_p]),
    "seqparStreamDestroy": (c_int, [c_void_p]),
    "seqparStreamSynchronize": (c_int, [c_void_p]),
    "seqparStreamQuery": (c_int, [c_void_p]),
    "seqparStreamLaunch": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparEventCreate": (c_int, [c_void_p]),
    "seqparEventDestroy": (c_int, [c_void_p]),
    "seqparEventRecord": (c_int, [c_void_p, c_void_p]),
    "seqparStreamWaitEvent": (c_int, [c_void_p, c_void_p]),
    "seqparEventSynchronize": (c_int, [c_void_p]),
    "seqparEventQuery": (c_int, [c_void_p]),
    "seqparEventElapsedTime": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparSendRecv": (c_int, [c_void_p, c_size_t, c_int, c_void_p, c_size_t, c_int, c_void_p, c_void_p]),
    "seqparLayoutLocalLength": (c_int, [c_void_p, c_int, c_void_p]),
    "seqparLayoutToGlobal": (c_int, [c_void_p, c_int, c_int64, c_void_p]),
    "seqparLayoutToLocal": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "seqparLayoutGlobals": (c_int, [c_void_p, c_int, c_void_p]),
    "seqparLayoutRuns": (c_int, [c_void_p, c_int, c_void_p, c_int64, c_void_p]),
    "seqparLayoutLocalCuSeqlens": (c_int, [c_void_p, c_int, c_void_p, c_int64, c_void_p]),
    "seqparRedistributePlanCreate": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p]),
    "seqparRedistributePlanDestroy": (c_int, [c_void_p]),
    "seqparRedistribute": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparHeadsOfMember": (c_int, [c_int64, c_int64, c_int, c_int, c_void_p, c_void_p]),
    "seqparSequenceToHeads": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparHeadsToSequence": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparAllGather": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparReduceScatter": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparReduceScatterLse": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p]),
    "seqparHaloExchange": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparHaloAdjoint": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparRingCreate": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparRingScratch": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparRingDestroy": (c_int, [c_void_p]),
    "seqparRingPost": (c_int, [c_void_p, c_void_p]),
    "seqparRingWait": (c_int, [c_void_p, c_void_p]),
    "seqparRingReset": (c_int, [c_void_p]),
    "seqparRingResetFrom": (c_int, [c_void_p, c_void_p]),
    "seqparRingCurrent": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "seqparRingQuery": (c_int, [c_void_p, c_void_p]),
    "seqparShift": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparLinkQuery": (c_int, [c_void_p, c_int, c_void_p]),
    "seqparMoveEstimate": (c_int, [c_int, c_size_t, c_void_p, c_int, c_void_p, c_void_p]),
    "seqparGridRanks": (c_int, [c_void_p, c_void_p]),
    "seqparGridCoordinates": (c_int, [c_void_p, c_int, c_void_p]),
    "seqparGridRank": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparGridGroup": (c_int, [c_void_p, c_uint, c_int, c_void_p, c_int, c_void_p, c_void_p]),
    "seqparGroupsCreate": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "seqparMeshPlan": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparMeshCreate": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p]),
    "seqparMeshDestroy": (c_int, [c_void_p]),
    "seqparMeshShape": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparMeshGroup": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "seqparMeshSchedule": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparMeshScheduleText": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p]),
    "seqparMeshReceive": (c_int, [c_int, c_void_p, c_int, c_void_p, c_void_p]),
    "seqparMeshReduceO": (c_int, [c_int, c_void_p, c_void_p, c_void_p]),
    "seqparMeshReduceSum": (c_int, [c_int, c_int, c_void_p, c_int, c_int, c_int, c_void_p, c_void_p]),
    "seqparMeshAllGather": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparMeshReduceScatter": (c_int, [c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "seqparMeshReduceScatterO": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparShortConvCreate": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparShortConvDestroy": (c_int, [c_void_p]),
    "seqparShortConvForward": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "seqparShortConvBackward": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparAttnAlgorithmName": (c_char_p, [c_int]),
    "seqparAttnPlanCreate": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparAttnPlanDestroy": (c_int, [c_void_p]),
    "seqparAttnPlanWorkspaceSize": (c_int, [c_void_p, c_void_p]),
    "seqparAttnPlanReserveSize": (c_int, [c_void_p, c_void_p]),
    "seqparAttnPlanPrepare": (c_int, [c_void_p, c_void_p, c_size_t]),
    "seqparAttnPlanLayout": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparAttnPlanExplain": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparAttnForward": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparAttnBackward": (c_int, [c_void_p, c_void_p, c_void_p]),
    "seqparAttnGetLastError": (c_char_p, []),
}
