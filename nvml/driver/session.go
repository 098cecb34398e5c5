package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"nvdra/nvml"
)

// A session is the child's session with the driver: the library is loaded and
// initialised. Its methods are those of [nvml.Node]; they may run at the same
// time, as NVML allows it.
type session struct {
	library *dl.DynamicLibrary // to look up functions
	lib     gonvml.Interface   // to call them
	// change is held by whatever creates or destroys, so that what it has
	// looked at stays true while it acts. Other processes are not held off,
	// but then the driver refuses.
	change chan struct{}

	mu      sync.Mutex
	symbols map[string]bool
}

// required are the functions without which a library is not NVML. All others
// may be missing.
var required = []string{
	"nvmlInitWithFlags",
	"nvmlShutdown",
	"nvmlErrorString",
	"nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID",
	"nvmlDeviceGetMinorNumber",
	"nvmlDeviceGetPciInfo_v3",
}

// openSession loads the library and initialises it.
//
// go-nvml calls a function of the library by its name, and where the library
// has none the dynamic linker ends the process. So nothing may be called that
// has not been looked up, not even by go-nvml on our behalf, which turns codes
// into text with nvmlErrorString.
func openSession(path string) (*session, error) {
	library := dl.New(path, dl.RTLD_LAZY)
	if err := library.Open(); err != nil {
		return nil, fmt.Errorf("%w: load %s: %w", nvml.ErrDriver, path, err)
	}
	s := &session{
		library: library,
		lib:     gonvml.New(gonvml.WithLibraryPath(path)),
		change:  make(chan struct{}, 1),
		symbols: map[string]bool{},
	}
	for _, symbol := range required {
		if !s.has(symbol) {
			return nil, fmt.Errorf("%w: load %s: it has no function %s, so it is not NVML of a supported driver",
				nvml.ErrDriver, path, symbol)
		}
	}
	// Without GPUs there is a driver all the same: they may all have been
	// handed to virtual machines.
	err := s.call("nvmlInitWithFlags", func() gonvml.Return { return s.lib.InitWithFlags(gonvml.INIT_FLAG_NO_GPUS) })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", nvml.ErrDriver, err)
	}
	return s, nil
}

// close ends the session with the driver.
func (s *session) close() error {
	if ret := s.lib.Shutdown(); ret != gonvml.SUCCESS && ret != gonvml.ERROR_UNINITIALIZED {
		return &callError{call: "nvmlShutdown", ret: ret, text: text(ret)}
	}
	return nil
}

// has reports whether the library has a function.
func (s *session) has(symbol string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has, known := s.symbols[symbol]
	if !known {
		has = s.library.Lookup(symbol) == nil
		s.symbols[symbol] = has
	}
	return has
}

// call makes one NVML call, if the library has it.
func (s *session) call(symbol string, f func() gonvml.Return) error {
	if !s.has(symbol) {
		return &callError{call: symbol, ret: gonvml.ERROR_FUNCTION_NOT_FOUND, text: "this driver's library has no such function"}
	}
	if ret := f(); ret != gonvml.SUCCESS {
		return &callError{call: symbol, ret: ret, text: text(ret)}
	}
	return nil
}

// exclusive waits for its turn to change something, and returns how to let
// the next one.
func (s *session) exclusive(ctx context.Context) (func(), error) {
	select {
	case s.change <- struct{}{}:
		return func() { <-s.change }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// versions reads the version of the driver. Neither is worth failing for.
func (s *session) versions() (nvml.Driver, error) {
	var d nvml.Driver
	err := s.call("nvmlSystemGetDriverVersion", func() (ret gonvml.Return) {
		d.Version, ret = s.lib.SystemGetDriverVersion()
		return ret
	})
	if err = tolerate(err); err != nil {
		return nvml.Driver{}, err
	}
	// The second version asks libcuda, which may be missing where NVML is not.
	err = s.call("nvmlSystemGetCudaDriverVersion_v2", func() (ret gonvml.Return) {
		d.CUDAVersion, ret = s.lib.SystemGetCudaDriverVersion_v2()
		return ret
	})
	if err != nil && !stale(err) {
		d.CUDAVersion = 0
		err = s.call("nvmlSystemGetCudaDriverVersion", func() (ret gonvml.Return) {
			d.CUDAVersion, ret = s.lib.SystemGetCudaDriverVersion()
			return ret
		})
	}
	if err != nil && stale(err) {
		return nvml.Driver{}, err
	}
	if err != nil {
		d.CUDAVersion = 0
	}
	return d, nil
}

// handle finds a GPU by its UUID.
func (s *session) handle(uuid nvml.UUID) (gonvml.Device, error) {
	if !strings.HasPrefix(string(uuid), "GPU-") {
		return nil, fmt.Errorf("%q is not the UUID of a GPU: %w", uuid, nvml.ErrNotFound)
	}
	var d gonvml.Device
	err := s.call("nvmlDeviceGetHandleByUUID", func() (ret gonvml.Return) {
		d, ret = s.lib.DeviceGetHandleByUUID(string(uuid))
		return ret
	})
	if err == nil {
		return d, nil
	}
	if stale(err) {
		return nil, err
	}
	if is(err, gonvml.ERROR_NOT_FOUND, gonvml.ERROR_GPU_NOT_FOUND, gonvml.ERROR_INVALID_ARGUMENT) {
		return nil, fmt.Errorf("the driver knows no GPU with this UUID: %w", nvml.ErrNotFound)
	}
	// NVML may refuse to look for one GPU because another one is lost.
	count, countErr := s.count()
	if countErr != nil {
		return nil, err
	}
	for i := range count {
		d, handleErr := s.handleByIndex(i)
		if handleErr != nil {
			continue
		}
		if found, uuidErr := s.uuid(d); uuidErr == nil && found == uuid {
			return d, nil
		}
	}
	return nil, err
}

func (s *session) count() (n int, err error) {
	err = s.call("nvmlDeviceGetCount_v2", func() (ret gonvml.Return) {
		n, ret = s.lib.DeviceGetCount()
		return ret
	})
	if is(err, gonvml.ERROR_NOT_FOUND) { // how some releases say zero
		return 0, nil
	}
	return n, err
}

func (s *session) handleByIndex(i int) (d gonvml.Device, err error) {
	err = s.call("nvmlDeviceGetHandleByIndex_v2", func() (ret gonvml.Return) {
		d, ret = s.lib.DeviceGetHandleByIndex(i)
		return ret
	})
	return d, err
}

func (s *session) uuid(d gonvml.Device) (nvml.UUID, error) {
	var uuid string
	err := s.call("nvmlDeviceGetUUID", func() (ret gonvml.Return) {
		uuid, ret = d.GetUUID()
		return ret
	})
	if err == nil && uuid == "" {
		err = errors.New("nvmlDeviceGetUUID: the answer is empty")
	}
	return nvml.UUID(uuid), err
}
