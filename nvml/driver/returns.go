package driver

import (
	"errors"
	"fmt"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"nvdra/nvml"
)

// A callError is what NVML answered to one call.
type callError struct {
	call string // the NVML function
	ret  gonvml.Return
	text string // in NVML's words
}

// Error implements error.
func (e *callError) Error() string { return e.call + ": " + e.text }

// Is maps NVML's codes to the kinds of package nvml.
func (e *callError) Is(target error) bool {
	switch e.ret {
	case gonvml.ERROR_NOT_FOUND, gonvml.ERROR_GPU_NOT_FOUND:
		return target == nvml.ErrNotFound
	case gonvml.ERROR_GPU_IS_LOST:
		return target == nvml.ErrLost
	case gonvml.ERROR_IN_USE, gonvml.ERROR_INSUFFICIENT_RESOURCES:
		return target == nvml.ErrInUse
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_DEPRECATED, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH:
		return target == nvml.ErrUnsupported
	case gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED, gonvml.ERROR_LIB_RM_VERSION_MISMATCH, gonvml.ERROR_LIBRARY_NOT_FOUND:
		return target == nvml.ErrDriver
	}
	return false
}

// text is NVML's own words for a code, with advice where a code has one cause.
func text(ret gonvml.Return) string {
	words := ret.Error()
	switch ret {
	case gonvml.ERROR_NO_PERMISSION:
		return words + " (this needs a privileged process)"
	case gonvml.ERROR_UNKNOWN:
		return words + fmt.Sprintf(" (code %d; dmesg may say more)", int(ret))
	}
	return words
}

// is reports whether an error is one of these answers.
func is(err error, codes ...gonvml.Return) bool {
	call, ok := errors.AsType[*callError](err)
	return ok && slices.Contains(codes, call.ret)
}

// tolerate drops the answers that mean "this driver or board does not tell".
func tolerate(err error) error {
	if is(err, gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_DEPRECATED, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH) {
		return nil
	}
	return err
}

// stale reports whether an error means that the session is of no use any
// more: the driver was unloaded, or loaded again, or replaced. NVML answers so
// before it does anything.
func stale(err error) bool {
	return is(err, gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED, gonvml.ERROR_LIB_RM_VERSION_MISMATCH)
}
