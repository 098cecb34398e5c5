package gpuplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.uber.org/zap"
	cdifiles "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/cdi"
	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/gpuplugin/step"
	"nvdra/roles/internal/claims"
)

// A taken is a claim of the DRA Driver as we remember it from now on.
type taken struct {
	claims.Adopted
	left  []string // what stays behind when the claim ends, and what to do about it
	mig   []string // MIG devices that may have been made for the claim
	notes []string // what could not be found out
}

// surroundings are the node at the moment of taking over.
type surroundings struct {
	inventory *inventory
	readable  bool                 // the driver has answered: what is not in the inventory is not there
	addresses map[nvml.UUID]string // of GPUs, as the kernel knows them
	pool      string
	// spec reads the CDI spec of a claim; nil if it is not there or lacks a device.
	spec func(uid string, devices []string) *cdispec.Spec
}

// lookAround is what is known of the node now.
func (a adoption) lookAround() surroundings {
	addresses, err := gpuAddresses(a.box)
	if err != nil {
		a.log.Warn("find out where GPUs are", zap.Error(err)) // it matters only while the driver does not answer
	}
	return surroundings{
		inventory: a.machine.Inventory(), readable: a.machine.Err() == nil, addresses: addresses, pool: a.pool,
		spec: func(uid string, devices []string) *cdispec.Spec { return readSpec(a.specs, uid, devices) },
	}
}

// readSpec reads a claim's CDI spec if a container runtime would find all devices.
func readSpec(store *cdi.Store, uid string, devices []string) *cdispec.Spec {
	path, err := store.Path(uid)
	if err != nil || store.Check(uid, devices) != nil {
		return nil
	}
	spec, err := cdifiles.ReadSpec(path, 0)
	if err != nil {
		return nil
	}
	return spec.Spec
}

// A takenDevice is one device of a claim.
type takenDevice struct {
	claims.Prepared
	uuid nvml.UUID
	step *claims.Step // that gives it to a container; nil if there is none of ours
}

// takeOver says how we remember a claim. Nothing on the node is touched.
func (s surroundings) takeOver(c upstreamClaim) (taken, error) {
	switch {
	case c.err != nil:
		return taken{}, fmt.Errorf("%w: %w", claims.ErrPermanent, c.err)
	case c.State != upstreamCompleted:
		return taken{}, fmt.Errorf("%w: there is no state %q", claims.ErrPermanent, c.State)
	}
	t := taken{Adopted: claims.Adopted{Ref: c.ref()}}
	status, err := c.status()
	if err != nil {
		t.notes = append(t.notes, err.Error())
	}
	var all []takenDevice
	ours := true // we know how to give all devices to a container
	for _, g := range c.Groups {
		var members []takenDevice
		for _, u := range g.Devices {
			d, err := s.device(u)
			if err != nil {
				return taken{}, fmt.Errorf("%w: %w", claims.ErrPermanent, err)
			}
			d.Admin = status.admin(device.DriverName, u.names())
			ours = ours && d.step != nil
			members = append(members, d)
			t.Devices = append(t.Devices, d.Prepared)
		}
		ours = ours && g.Config.MPSDaemon == ""
		sliced := g.Config.TimeSliced == nil && status.timeSliced(device.DriverName) || g.Config.TimeSliced != nil && *g.Config.TimeSliced
		t.leave(g, members, sliced)
		all = append(all, members...)
	}
	if ours {
		t.Steps, err = ourSteps(all)
	} else {
		t.Steps, err = s.theirSteps(string(c.uid), all)
	}
	return t, err
}

// device says how we remember a device.
func (s surroundings) device(u upstreamDevice) (takenDevice, error) {
	n := u.names()
	d := takenDevice{Prepared: claims.Prepared{
		Device:     claims.Device{Requests: n.Requests, Pool: n.PoolName, Name: n.DeviceName},
		CDIDevices: n.CDIDeviceIDs,
	}}
	if d.Pool == "" {
		d.Pool = s.pool
	}
	var err error
	switch {
	case u.GPU != nil:
		d.Type, d.uuid = string(device.KindGPU), u.GPU.Info.UUID
		d.Occupies, d.step, err = s.gpu(d.uuid)
	case u.MIG != nil:
		c := u.MIG.Concrete
		d.Type, d.uuid = string(device.KindMIG), c.UUID
		d.Occupies, d.step, err = s.mig(c.UUID, c.ParentUUID, c.ParentPCI, d.Name)
	case u.VFIO != nil:
		d.Type, d.uuid = "vfio", u.VFIO.Info.UUID
		pci := s.address(d.uuid, u.VFIO.Info.PCI)
		if pci == "" {
			pci = string(d.uuid) // at least it says what it is
		}
		d.Occupies = []string{pci}
	default:
		return d, errors.New("it has a device that is neither a GPU nor a MIG device nor a VFIO device")
	}
	if err != nil {
		return d, err
	}
	if d.uuid == "" && u.VFIO == nil {
		return d, fmt.Errorf("device %q has no UUID", d.Name)
	}
	if d.step != nil {
		d.step.Device = d.Name
	}
	return d, nil
}

// nowhere is where a GPU is that is not there; it stands in messages.
const nowhere = "an unknown address"

// gpu says what a GPU occupies and by which step it is given to a container. If
// the driver does not answer and the kernel does not know the GPU, there is no
// telling.
func (s surroundings) gpu(uuid nvml.UUID) (occupies []string, _ *claims.Step, err error) {
	g, known := s.inventory.byUUID[uuid].(device.GPU)
	if known {
		st, err := step.GPU(g)
		return g.Occupies(), &st, err
	}
	pci := s.address(uuid, "")
	if pci == "" {
		occupies = []string{string(uuid)} // nothing anybody else can have
		if !s.readable {
			return occupies, nil, nil
		}
		pci = nowhere
	}
	g, known = device.All(device.Context{}, nvml.GPU{UUID: uuid, PCI: pci})[0].(device.GPU)
	if !known {
		return nil, nil, fmt.Errorf("%s is not a GPU", uuid)
	}
	if occupies == nil {
		occupies = g.Occupies()
	}
	st, err := step.GPU(g)
	return occupies, &st, err
}

// mig is gpu for a MIG device.
func (s surroundings) mig(uuid, parent nvml.UUID, parentPCI, name string) (occupies []string, _ *claims.Step, err error) {
	m, known := s.inventory.byUUID[uuid].(device.MIG)
	if known {
		occupies = m.Occupies()
	} else {
		gpu := nvml.GPU{UUID: parent, PCI: s.address(parent, parentPCI), MIG: nvml.MIGMode{Enabled: true}}
		gpu.MIGDevices = []nvml.MIGDevice{{UUID: uuid, Parent: parent}}
		if m, known = device.All(device.Context{}, gpu)[0].(device.MIG); !known {
			return nil, nil, fmt.Errorf("%s is not a MIG device", uuid)
		}
		if gpu.PCI != "" && !s.readable {
			occupies = []string{gpu.PCI + "/" + firstSlice(name, uuid)}
		} // if the driver answers, it is gone and occupies nothing
	}
	st, err := step.MIGDevice(m)
	return occupies, &st, err
}

var migName = regexp.MustCompile(`^gpu-[0-9]+-mig-.+-[0-9]+-([0-9]+)$`)

// firstSlice is the first memory slice of a MIG device as its name has it, or
// something that no other device has.
func firstSlice(name string, uuid nvml.UUID) string {
	m := migName.FindStringSubmatch(name)
	if m == nil {
		return string(uuid)
	}
	start, err := strconv.Atoi(m[1])
	if err != nil {
		return string(uuid)
	}
	_, slice, _ := strings.Cut(device.MIGOccupies("", start, 1)[0], "/")
	return slice
}

// address is where a GPU is, or "". recorded is what the other driver had
// written down.
func (s surroundings) address(uuid nvml.UUID, recorded string) string {
	if g, ok := s.inventory.gpus[uuid]; ok {
		return g.PCI
	}
	if pci, ok := s.addresses[uuid]; ok {
		return pci
	}
	return normalAddress(recorded)
}

var pciAddress = regexp.MustCompile(`^([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$`)

// normalAddress brings a PCI address into the form in which we compare them, or
// returns "". NVML writes domains with eight digits, the kernel with four or as
// many as are needed.
func normalAddress(s string) string {
	m := pciAddress.FindStringSubmatch(strings.ToLower(s))
	if m == nil {
		return ""
	}
	domain := m[1]
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + m[2]
}

// ourSteps give a claim its devices as if we had prepared it.
func ourSteps(all []takenDevice) ([]claims.Step, error) {
	driver, err := step.Driver()
	if err != nil {
		return nil, err
	}
	steps := []claims.Step{driver}
	seen := map[string]bool{}
	for _, d := range all {
		// Two requests may have been given the same device.
		if !seen[d.Name] {
			steps = append(steps, *d.step)
		}
		seen[d.Name] = true
	}
	return steps, nil
}

// theirSteps give a claim what the other driver has given it.
func (s surroundings) theirSteps(uid string, all []takenDevice) ([]claims.Step, error) {
	devices := map[string]string{} // by name in the CDI spec
	var names, words []string
	for _, d := range all {
		name := cdi.DeviceName(uid, d.Name)
		if devices[name] == "" {
			names = append(names, name)
			words = append(words, d.Name)
		}
		devices[name] = d.Name
	}
	what := strings.Join(words, ", ")
	spec := s.spec(uid, names)
	if spec == nil {
		st, err := step.Adopted(uid, "", what, nil)
		return []claims.Step{st}, err
	}
	var steps []claims.Step
	add := func(device string, edits cdispec.ContainerEdits) error {
		if cdi.IsEmpty(edits) {
			return nil
		}
		st, err := step.Adopted(uid, device, what, &edits)
		steps = append(steps, st)
		return err
	}
	err := add("", spec.ContainerEdits)
	for _, d := range spec.Devices {
		if devices[d.Name] != "" {
			err = errors.Join(err, add(devices[d.Name], d.ContainerEdits))
		}
	}
	return steps, err
}

// leave notes what a group leaves behind when the claim ends.
func (t *taken) leave(g upstreamGroup, members []takenDevice, sliced bool) {
	var gpus, vfio []string
	for _, d := range members {
		switch d.Type {
		case string(device.KindGPU):
			gpus = append(gpus, string(d.uuid))
		case string(device.KindMIG):
			t.mig = append(t.mig, string(d.uuid))
		default:
			vfio = append(vfio, strings.Join(d.Occupies, ","))
		}
	}
	if id := g.Config.MPSDaemon; id != "" {
		what := fmt.Sprintf("its MPS daemon stays behind: when its pods have ended, delete Deployment mps-control-daemon-%s in the namespace of that driver", id)
		if len(gpus) > 0 {
			what += " and make its GPUs usable without MPS with nvidia-smi -c DEFAULT -i " + strings.Join(gpus, ",")
		}
		t.left = append(t.left, what)
	}
	if sliced && len(gpus) > 0 {
		t.left = append(t.left, "the time slice that it set stays: when its pods have ended, take it back with nvidia-smi compute-policy --set-timeslice=0 -i "+strings.Join(gpus, ","))
	}
	if len(vfio) > 0 {
		t.left = append(t.left, fmt.Sprintf("%s stays bound to VFIO: when its pods have ended, bind it to the driver nvidia again or reboot the node", strings.Join(vfio, ", ")))
	}
}

// gpuAddresses reads where the kernel has GPUs, which it says even while the
// driver's library is away.
func gpuAddresses(box host.Host) (map[nvml.UUID]string, error) {
	const name = "/proc/driver/nvidia/gpus"
	dir, err := box.Resolve(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "information"))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	addresses := map[nvml.UUID]string{}
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("read where a GPU is: %w", err))
			continue
		}
		for line := range strings.Lines(string(data)) {
			pci := normalAddress(filepath.Base(filepath.Dir(file)))
			if uuid, ok := strings.CutPrefix(line, "GPU UUID:"); ok && pci != "" {
				addresses[nvml.UUID(strings.TrimSpace(uuid))] = pci
			}
		}
	}
	return addresses, errors.Join(errs...)
}
