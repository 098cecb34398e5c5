package driver

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"nvdra/nvml"
)

// scanWidth is how many GPUs are read at the same time. The first look at a
// GPU that nobody uses makes the driver bring it up, which takes a second or
// more on real boards.
const scanWidth = 8

// A reading is what one index of the machine turned out to be: a GPU, a
// broken one, or (skip) something that only drives a display.
type reading struct {
	gpu    nvml.GPU
	broken *nvml.Broken
	skip   bool
}

// scan reads all GPUs.
func (s *session) scan(ctx context.Context) (nvml.Scan, error) {
	driver, err := s.versions()
	if err != nil {
		return nvml.Scan{}, err
	}
	count, err := s.count()
	if err != nil {
		return nvml.Scan{}, err
	}
	readings := make([]reading, count)
	var wg sync.WaitGroup
	width := make(chan struct{}, scanWidth)
	for i := range count {
		wg.Go(func() {
			width <- struct{}{}
			defer func() { <-width }()
			if ctx.Err() == nil {
				readings[i] = s.read(i)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nvml.Scan{}, err
	}
	scan := nvml.Scan{Driver: driver}
	for _, r := range readings {
		switch {
		case r.skip:
		case r.broken != nil && stale(r.broken.Err):
			return nvml.Scan{}, r.broken.Err
		case r.broken != nil:
			scan.Broken = append(scan.Broken, *r.broken)
		default:
			scan.GPUs = append(scan.GPUs, r.gpu)
		}
	}
	slices.SortStableFunc(scan.GPUs, func(a, b nvml.GPU) int { return comparePCI(a.PCI, b.PCI) })
	return scan, nil
}

// read reads the GPU with an index.
func (s *session) read(index int) reading {
	d, err := s.handleByIndex(index)
	if err != nil {
		return reading{broken: &nvml.Broken{Index: index, Err: err}}
	}
	gpu, err := s.readGPU(d)
	if errors.Is(err, errDisplay) {
		return reading{skip: true}
	}
	if err != nil {
		// What is known of it helps whoever has to find the board.
		return reading{broken: &nvml.Broken{Index: index, UUID: gpu.UUID, PCI: gpu.PCI, Err: err}}
	}
	return reading{gpu: gpu}
}

// gpu reads one GPU.
func (s *session) gpu(_ context.Context, uuid nvml.UUID) (nvml.GPU, error) {
	d, err := s.handle(uuid)
	if err != nil {
		return nvml.GPU{}, err
	}
	return s.readGPU(d)
}

// errDisplay means that a device is no GPU to compute with.
var errDisplay = errors.New("a display adapter")

// displays are the adapters of workstations whose NVML lists them as a GPU.
var displays = []string{"DGX Display", "NVIDIA DGX Display"}

// readGPU reads everything about one GPU. With an error, UUID and PCI are set
// if they could be read.
func (s *session) readGPU(d gonvml.Device) (nvml.GPU, error) {
	g, err := s.readIdentity(d)
	if err != nil {
		return g, err
	}
	for _, read := range []func(gonvml.Device, *nvml.GPU) error{
		s.readProduct, s.readArchitecture, s.readCapability, s.readMemory, s.readAddressing, s.readMode, s.readMIG,
	} {
		if err := tolerate(read(d, &g)); err != nil {
			return g, err
		}
	}
	return g, nil
}

// readIdentity reads what must be known of a GPU. With an error it is what
// could be read.
func (s *session) readIdentity(d gonvml.Device) (g nvml.GPU, err error) {
	uuid, uuidErr := s.uuid(d)
	pci, pciErr := s.pci(d)
	g.UUID, g.PCI = uuid, pci
	minorErr := s.call("nvmlDeviceGetMinorNumber", func() (ret gonvml.Return) {
		g.Minor, ret = d.GetMinorNumber()
		return ret
	})
	return g, cmp.Or(uuidErr, pciErr, minorErr)
}

func (s *session) pci(d gonvml.Device) (string, error) {
	var info gonvml.PciInfo
	err := s.call("nvmlDeviceGetPciInfo_v3", func() (ret gonvml.Return) {
		info, ret = d.GetPciInfo()
		return ret
	})
	if err != nil {
		return "", err
	}
	return pciAddress(cString(info.BusId[:]))
}

// cString is the text in a C array.
func cString(chars []int8) string {
	var text []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return string(text)
}

func (s *session) readProduct(d gonvml.Device, g *nvml.GPU) error {
	err := tolerate(s.call("nvmlDeviceGetName", func() (ret gonvml.Return) {
		g.Product, ret = d.GetName()
		return ret
	}))
	if err != nil {
		return err
	}
	if slices.Contains(displays, g.Product) {
		return errDisplay
	}
	var brand gonvml.BrandType
	err = s.call("nvmlDeviceGetBrand", func() (ret gonvml.Return) {
		brand, ret = d.GetBrand()
		return ret
	})
	if err == nil {
		g.Brand = brandName(brand)
	}
	return err
}

func (s *session) readArchitecture(d gonvml.Device, g *nvml.GPU) error {
	var arch gonvml.DeviceArchitecture
	err := s.call("nvmlDeviceGetArchitecture", func() (ret gonvml.Return) {
		arch, ret = d.GetArchitecture()
		return ret
	})
	if err == nil {
		g.Architecture = architectureName(arch)
	}
	return err
}

func (s *session) readCapability(d gonvml.Device, g *nvml.GPU) error {
	var major, minor int
	err := s.call("nvmlDeviceGetCudaComputeCapability", func() (ret gonvml.Return) {
		major, minor, ret = d.GetCudaComputeCapability()
		return ret
	})
	if err == nil {
		g.ComputeMajor, g.ComputeMinor = major, minor
	}
	return err
}

func (s *session) readMemory(d gonvml.Device, g *nvml.GPU) error {
	var memory gonvml.Memory
	err := s.call("nvmlDeviceGetMemoryInfo", func() (ret gonvml.Return) {
		memory, ret = d.GetMemoryInfo()
		return ret
	})
	if err == nil {
		g.MemoryBytes = memory.Total
	}
	return err
}

func (s *session) readAddressing(d gonvml.Device, g *nvml.GPU) error {
	var mode gonvml.DeviceAddressingMode
	err := s.call("nvmlDeviceGetAddressingMode", func() (ret gonvml.Return) {
		mode, ret = d.GetAddressingMode()
		return ret
	})
	if err == nil {
		g.AddressingMode = addressingName(mode)
	}
	return err
}

// readMode reads whether the GPU is divided. Only "not supported" means that
// it cannot be: publishing a whole GPU that may be divided is worse than
// publishing none.
func (s *session) readMode(d gonvml.Device, g *nvml.GPU) error {
	mode, err := s.mode(d)
	if err == nil {
		g.MIG = mode
	}
	return err
}

// mode is the MIG mode of a GPU; one that has none is not capable of it.
func (s *session) mode(d gonvml.Device) (nvml.MIGMode, error) {
	var current, pending int
	err := s.call("nvmlDeviceGetMigMode", func() (ret gonvml.Return) {
		current, pending, ret = d.GetMigMode()
		return ret
	})
	if err != nil {
		return nvml.MIGMode{}, tolerate(err)
	}
	return nvml.MIGMode{
		Capable: true,
		Enabled: current == gonvml.DEVICE_MIG_ENABLE,
		Pending: pending == gonvml.DEVICE_MIG_ENABLE,
	}, nil
}
