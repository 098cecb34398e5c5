package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// A Return is an NVML return code. It is an error; callers get nil instead of
// [Success].
type Return int

// The return codes of NVML the simulator uses, with NVML's numbers.
const (
	Success                 Return = 0
	Uninitialized           Return = 1
	InvalidArgument         Return = 2
	NotSupported            Return = 3
	NoPermission            Return = 4
	NotFound                Return = 6
	InsufficientSize        Return = 7
	DriverNotLoaded         Return = 9
	Timeout                 Return = 10
	FunctionNotFound        Return = 13
	GPUIsLost               Return = 15
	ResetRequired           Return = 16
	LibRMVersionMismatch    Return = 18
	InUse                   Return = 19
	Memory                  Return = 20
	InsufficientResources   Return = 23
	ArgumentVersionMismatch Return = 25
	Deprecated              Return = 26
	NotReady                Return = 27
	GPUNotFound             Return = 28
	Unknown                 Return = 999
)

// A returnName is one code under the name NVML gives it and the sentence
// nvmlErrorString answers.
type returnName struct {
	code Return
	name string
	text string
}

// returnNames holds every code NVML has, so that a fault may answer any of them.
var returnNames = []returnName{
	{Success, "SUCCESS", "Success"},
	{Uninitialized, "UNINITIALIZED", "Uninitialized"},
	{InvalidArgument, "INVALID_ARGUMENT", "Invalid Argument"},
	{NotSupported, "NOT_SUPPORTED", "Not Supported"},
	{NoPermission, "NO_PERMISSION", "Insufficient Permissions"},
	{5, "ALREADY_INITIALIZED", "Already Initialized"},
	{NotFound, "NOT_FOUND", "Not Found"},
	{InsufficientSize, "INSUFFICIENT_SIZE", "Insufficient Size"},
	{8, "INSUFFICIENT_POWER", "Insufficient External Power"},
	{DriverNotLoaded, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
	{Timeout, "TIMEOUT", "Timeout"},
	{11, "IRQ_ISSUE", "Interrupt Request Issue"},
	{12, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"},
	{FunctionNotFound, "FUNCTION_NOT_FOUND", "Function Not Found"},
	{14, "CORRUPTED_INFOROM", "Corrupted infoROM"},
	{GPUIsLost, "GPU_IS_LOST", "GPU is lost"},
	{ResetRequired, "RESET_REQUIRED", "GPU requires restart"},
	{17, "OPERATING_SYSTEM", "The operating system has blocked the request."},
	{LibRMVersionMismatch, "LIB_RM_VERSION_MISMATCH", "RM has detected an NVML/RM version mismatch."},
	{InUse, "IN_USE", "In use by another client"},
	{Memory, "MEMORY", "Insufficient Memory"},
	{21, "NO_DATA", "No data"},
	{22, "VGPU_ECC_NOT_SUPPORTED", "Unsupported ECC mode"},
	{InsufficientResources, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
	{24, "FREQ_NOT_SUPPORTED", "Requested frequency is not supported"},
	{ArgumentVersionMismatch, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch"},
	{Deprecated, "DEPRECATED", "Deprecated"},
	{NotReady, "NOT_READY", "System not ready"},
	{GPUNotFound, "GPU_NOT_FOUND", "GPU not found"},
	{29, "INVALID_STATE", "Invalid state"},
	{30, "RESET_TYPE_NOT_SUPPORTED", "Reset type not supported"},
	{Unknown, "UNKNOWN", "Unknown Error"},
}

// Error is the sentence nvmlErrorString gives for the code.
func (r Return) Error() string {
	for _, n := range returnNames {
		if n.code == r {
			return n.text
		}
	}
	return "Unknown Error"
}

// Name is the code's name in NVML without the prefix NVML_ERROR_.
func (r Return) Name() string {
	for _, n := range returnNames {
		if n.code == r {
			return n.name
		}
	}
	return strconv.Itoa(int(r))
}

// ParseReturn reads a code by name, with or without NVML_ERROR_ in front, or by
// number.
func ParseReturn(s string) (Return, error) {
	want := strings.TrimPrefix(strings.TrimPrefix(strings.ToUpper(s), "NVML_"), "ERROR_")
	for _, n := range returnNames {
		if n.name == want || strconv.Itoa(int(n.code)) == s {
			return n.code, nil
		}
	}
	return 0, fmt.Errorf("parse NVML return code %q: no such code; use a name such as NOT_SUPPORTED or a number such as 3", s)
}

// asError is nil for Success, so that a Return can be handed on as an error.
func (r Return) asError() error {
	if r == Success {
		return nil
	}
	return r
}
