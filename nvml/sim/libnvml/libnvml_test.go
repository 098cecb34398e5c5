package libnvml_test

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/libnvml"
	"nvdra/nvml/sim/simtest"
)

// open loads the library of a played machine the way the plugin does.
func open(t *testing.T, r *simtest.Root) gonvml.Interface {
	t.Helper()
	lib := gonvml.New(gonvml.WithLibraryPath(filepath.Join(r.Dir, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")))
	ok(t, "InitWithFlags", lib.InitWithFlags(gonvml.INIT_FLAG_NO_GPUS))
	t.Cleanup(func() { lib.Shutdown() })
	return lib
}

func ok(t *testing.T, what string, ret gonvml.Return) {
	t.Helper()
	want(t, what, ret, gonvml.SUCCESS)
}

func want(t *testing.T, what string, got, want gonvml.Return) {
	t.Helper()
	if got != want {
		t.Fatalf("%s answered %d (%v), want %d (%v)", what, got, got, want, want)
	}
}

func device(t *testing.T, lib gonvml.Interface, index int) gonvml.Device {
	t.Helper()
	d, ret := lib.DeviceGetHandleByIndex(index)
	ok(t, "DeviceGetHandleByIndex", ret)
	return d
}

// Every simple question has the answer the profile gives.
func TestAnswers(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "gb200")
	lib := open(t, r)
	b := r.Machine.Profile().GPUs[1]
	d := device(t, lib, 1)

	got := map[string]string{}
	note := func(name string, value any, ret gonvml.Return) {
		t.Helper()
		ok(t, name, ret)
		got[name] = fmt.Sprint(value)
	}
	v, ret := lib.SystemGetDriverVersion()
	note("driver", v, ret)
	v, ret = lib.SystemGetNVMLVersion()
	note("nvml", v, ret)
	n, ret := lib.SystemGetCudaDriverVersion_v2()
	note("cuda", n, ret)
	n, ret = lib.DeviceGetCount()
	note("count", n, ret)
	v, ret = d.GetUUID()
	note("uuid", v, ret)
	v, ret = d.GetName()
	note("name", v, ret)
	v, ret = d.GetSerial()
	note("serial", v, ret)
	n, ret = d.GetIndex()
	note("index", n, ret)
	n, ret = d.GetMinorNumber()
	note("minor", n, ret)
	n, ret = d.GetModuleId()
	note("module", n, ret)
	pci, ret := d.GetPciInfo()
	note("pci", fmt.Sprintf("%s %s %x %x", text(pci.BusId[:]), text(pci.BusIdLegacy[:]), pci.PciDeviceId, pci.PciSubSystemId), ret)
	ext, ret := d.GetPciInfoExt()
	note("pciext", fmt.Sprintf("%s %x %d.%d", text(ext.BusId[:]), ext.PciDeviceId, ext.BaseClass, ext.SubClass), ret)
	brand, ret := d.GetBrand()
	note("brand", brand, ret)
	arch, ret := d.GetArchitecture()
	note("arch", arch, ret)
	major, minor, ret := d.GetCudaComputeCapability()
	note("cc", fmt.Sprint(major, ".", minor), ret)
	mem, ret := d.GetMemoryInfo()
	note("memory", fmt.Sprint(mem.Total>>20, " ", (mem.Used+mem.Free)>>20), ret)
	mem2, ret := d.GetMemoryInfo_v2()
	note("memory2", fmt.Sprint(mem2.Total>>20, " ", mem2.Reserved>>20, " ", mem2.Used), ret)
	mode, ret := d.GetAddressingMode()
	note("addressing", mode.Value, ret)
	current, pending, ret := d.GetMigMode()
	note("mig", fmt.Sprint(current, pending), ret)
	isMIG, ret := d.IsMigDeviceHandle()
	note("isMIG", isMIG, ret)
	n, ret = d.GetMaxMigDeviceCount()
	note("maxMIG", n, ret)
	on, ret := d.GetPersistenceMode()
	note("persistence", on, ret)
	on, ret = d.GetDisplayActive()
	note("display", on, ret)
	compute, ret := d.GetComputeMode()
	note("compute", compute, ret)
	virt, ret := d.GetVirtualizationMode()
	note("virtualization", virt, ret)
	f1, ret := d.GetGpuFabricInfo()
	note("fabric1", fmt.Sprintf("%x %d %d", f1.ClusterUuid, f1.CliqueId, f1.State), ret)
	f2, ret := d.GetGpuFabricInfoV().V2()
	note("fabric2", fmt.Sprintf("%x %d %d %d", f2.ClusterUuid, f2.CliqueId, f2.State, f2.HealthMask), ret)
	f3, ret := d.GetGpuFabricInfoV().V3()
	note("fabric3", fmt.Sprintf("%x %d %d %d", f3.ClusterUuid, f3.CliqueId, f3.State, f3.HealthSummary), ret)

	cluster := strings.ReplaceAll(b.Fabric.Cluster, "-", "")
	wanted := map[string]string{
		"driver": "580.95.05", "nvml": "13.580.95.05", "cuda": "13000", "count": "4",
		"uuid": string(b.UUID), "name": "NVIDIA GB200", "serial": b.Serial, "index": "1", "minor": "1", "module": "2",
		"pci": "00000009:01:00.0 0009:01:00.0 294110de 204610de", "pciext": "00000009:01:00.0 294110de 3.2",
		"brand": "14", "arch": "10", "cc": "10.0", "memory": "189471 189471", "memory2": "189471 640 0",
		"addressing": "2", "mig": "0 0", "isMIG": "false", "maxMIG": "0", "persistence": "0", "display": "0", "compute": "0", "virtualization": "0",
		"fabric1": cluster + " 32766 3", "fabric2": cluster + " 32766 3 426", "fabric3": cluster + " 32766 3 1",
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}

	for _, id := range []string{"0009:01:00.0", "00000009:01:00.0", "0009:01:00.0"} {
		found, ret := lib.DeviceGetHandleByPciBusId(strings.ToUpper(id))
		ok(t, "DeviceGetHandleByPciBusId", ret)
		if found != d {
			t.Errorf("%s is another GPU", id)
		}
	}
	_, ret = lib.DeviceGetHandleByPciBusId("0000:01:00.0")
	want(t, "DeviceGetHandleByPciBusId", ret, gonvml.ERROR_NOT_FOUND)
	_, ret = lib.DeviceGetHandleByIndex(4)
	want(t, "DeviceGetHandleByIndex(4)", ret, gonvml.ERROR_INVALID_ARGUMENT)
	_, ret = lib.DeviceGetHandleByUUID("GPU-nothing")
	want(t, "DeviceGetHandleByUUID", ret, gonvml.ERROR_NOT_FOUND)
	_, ret = d.GetGpuInstanceId()
	want(t, "GetGpuInstanceId of a GPU", ret, gonvml.ERROR_NOT_SUPPORTED)
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// TestMIG walks the life of a MIG device through the library.
func TestMIG(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "h100x8")
	lib := open(t, r)
	d := device(t, lib, 3)
	activation, ret := d.SetMigMode(1)
	ok(t, "SetMigMode", ret)
	ok(t, "its activation", activation)

	var names []string
	for i := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfoV(i).V3()
		if ret == gonvml.ERROR_NOT_SUPPORTED {
			continue
		}
		ok(t, "GetGpuInstanceProfileInfoV", ret)
		v2, ret := d.GetGpuInstanceProfileInfoByIdV(int(info.Id)).V2()
		ok(t, "GetGpuInstanceProfileInfoByIdV", ret)
		if text(v2.Name[:]) != text(info.Name[:]) {
			t.Errorf("names %q and %q", text(v2.Name[:]), text(info.Name[:]))
		}
		names = append(names, fmt.Sprintf("%d %s", info.Id, text(info.Name[:])))
	}
	if diff := cmp.Diff([]string{"19 MIG 1g.10gb", "14 MIG 2g.20gb", "9 MIG 3g.40gb", "5 MIG 4g.40gb", "0 MIG 7g.80gb", "20 MIG 1g.10gb+me", "15 MIG 1g.20gb"}, names); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
	_, ret = d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_COUNT)
	want(t, "GetGpuInstanceProfileInfo out of range", ret, gonvml.ERROR_INVALID_ARGUMENT)

	p, ret := d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_3_SLICE)
	ok(t, "GetGpuInstanceProfileInfo", ret)
	if p.Id != 9 || p.SliceCount != 3 || p.InstanceCount != 2 || p.MultiprocessorCount != 60 || p.CopyEngineCount != 3 || p.DecoderCount != 3 || p.JpegCount != 3 || p.MemorySizeMB != 40448 {
		t.Errorf("3g is %+v", p)
	}
	places, ret := d.GetGpuInstancePossiblePlacements(&p)
	ok(t, "GetGpuInstancePossiblePlacements", ret)
	if diff := cmp.Diff([]gonvml.GpuInstancePlacement{{Start: 0, Size: 4}, {Start: 4, Size: 4}}, places); diff != "" {
		t.Errorf("placements (-want +got):\n%s", diff)
	}
	gi, ret := d.CreateGpuInstanceWithPlacement(&p, &places[1])
	ok(t, "CreateGpuInstanceWithPlacement", ret)
	_, ret = d.CreateGpuInstanceWithPlacement(&p, &places[1])
	want(t, "the same again", ret, gonvml.ERROR_INSUFFICIENT_RESOURCES)
	left, ret := d.GetGpuInstanceRemainingCapacity(&p)
	ok(t, "GetGpuInstanceRemainingCapacity", ret)
	info, ret := gi.GetInfo()
	ok(t, "GpuInstance.GetInfo", ret)
	if left != 1 || info.Id != 2 || info.ProfileId != 9 || info.Placement != places[1] || info.Device != d {
		t.Errorf("%d left, instance is %+v", left, info)
	}

	small, ret := gi.GetComputeInstanceProfileInfo(gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	ok(t, "GetComputeInstanceProfileInfo", ret)
	if n, ret := gi.GetComputeInstanceRemainingCapacity(&small); ret != gonvml.SUCCESS || n != 3 || small.MultiprocessorCount != 20 {
		t.Errorf("%d of %+v fit: %v", n, small, ret)
	}
	if at, ret := gi.GetComputeInstancePossiblePlacements(&small); ret != gonvml.SUCCESS || len(at) != 3 {
		t.Errorf("placements of 1c: %v, %v", at, ret)
	}
	_, ret = gi.GetComputeInstanceProfileInfo(gonvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, 0)
	want(t, "7 of 3 slices", ret, gonvml.ERROR_NOT_SUPPORTED)
	named, ret := gi.GetComputeInstanceProfileInfoV(gonvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 0).V2()
	ok(t, "GetComputeInstanceProfileInfoV", ret)
	full, ret := gi.GetComputeInstanceProfileInfo(gonvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 0)
	ok(t, "GetComputeInstanceProfileInfo", ret)
	if text(named.Name[:]) != "MIG 3g.40gb" || full.Id != named.Id || full.MultiprocessorCount != 60 {
		t.Errorf("%q is %+v", text(named.Name[:]), full)
	}
	ci, ret := gi.CreateComputeInstance(&full)
	ok(t, "CreateComputeInstance", ret)
	want(t, "destroying an instance with a compute instance", gi.Destroy(), gonvml.ERROR_IN_USE)

	mig, ret := d.GetMigDeviceHandleByIndex(0)
	ok(t, "GetMigDeviceHandleByIndex", ret)
	_, ret = d.GetMigDeviceHandleByIndex(1)
	want(t, "GetMigDeviceHandleByIndex(1)", ret, gonvml.ERROR_NOT_FOUND)
	uuid, ret := mig.GetUUID()
	ok(t, "GetUUID", ret)
	byUUID, ret := lib.DeviceGetHandleByUUID(uuid)
	ok(t, "DeviceGetHandleByUUID of a MIG device", ret)
	parent, ret := mig.GetDeviceHandleFromMigDeviceHandle()
	ok(t, "GetDeviceHandleFromMigDeviceHandle", ret)
	giID, ret := mig.GetGpuInstanceId()
	ok(t, "GetGpuInstanceId", ret)
	ciID, ret := mig.GetComputeInstanceId()
	ok(t, "GetComputeInstanceId", ret)
	isMIG, ret := mig.IsMigDeviceHandle()
	ok(t, "IsMigDeviceHandle", ret)
	attributes, ret := mig.GetAttributes()
	ok(t, "GetAttributes", ret)
	memory, ret := mig.GetMemoryInfo()
	ok(t, "GetMemoryInfo", ret)
	index, ret := mig.GetIndex()
	ok(t, "GetIndex", ret)
	name, ret := mig.GetName()
	ok(t, "GetName", ret)
	if byUUID != mig || parent != d || giID != 2 || ciID != 0 || !isMIG || attributes.GpuInstanceSliceCount != 3 || attributes.MemorySizeMB != 40448 ||
		memory.Total != 40448<<20 || index != 0 || name != "NVIDIA H100 80GB HBM3 MIG 3g.40gb" {
		t.Errorf("MIG device: gi %d ci %d mig %v index %d name %q %+v", giID, ciID, isMIG, index, name, attributes)
	}
	ciInfo, ret := ci.GetInfo()
	ok(t, "ComputeInstance.GetInfo", ret)
	again, ret := d.GetGpuInstanceById(2)
	ok(t, "GetGpuInstanceById", ret)
	listed, ret := d.GetGpuInstances(&p)
	ok(t, "GetGpuInstances", ret)
	cis, ret := gi.GetComputeInstances(&full)
	ok(t, "GetComputeInstances", ret)
	ci0, ret := gi.GetComputeInstanceById(0)
	ok(t, "GetComputeInstanceById", ret)
	if ciInfo.GpuInstance != gi || again != gi || !slices.Equal(listed, []gonvml.GpuInstance{gi}) || !slices.Equal(cis, []gonvml.ComputeInstance{ci}) || ci0 != ci {
		t.Errorf("the same instances have different handles: %+v", ciInfo)
	}

	if err := r.Machine.Busy(r.Machine.View().GPUs()[3].Instances[0].Compute[0].UUID, sim.Process{PID: 99, Memory: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	procs, ret := mig.GetComputeRunningProcesses()
	ok(t, "GetComputeRunningProcesses", ret)
	if len(procs) != 1 || procs[0].Pid != 99 || procs[0].GpuInstanceId != 2 {
		t.Errorf("processes %+v", procs)
	}
	want(t, "destroying what is used", ci.Destroy(), gonvml.ERROR_IN_USE)
	_, ret = d.SetMigMode(0)
	want(t, "MIG off with instances", ret, gonvml.ERROR_IN_USE)
	if _, err := r.Machine.Control([]string{"idle", uuid}); err != nil {
		t.Fatal(err)
	}
	ok(t, "ComputeInstance.Destroy", ci.Destroy())
	ok(t, "GpuInstance.Destroy", gi.Destroy())
	want(t, "GpuInstance.Destroy again", gi.Destroy(), gonvml.ERROR_NOT_FOUND)
	_, ret = mig.GetUUID()
	want(t, "a MIG device that is gone", ret, gonvml.ERROR_NOT_FOUND)
	any, ret := d.CreateGpuInstance(&p)
	ok(t, "CreateGpuInstance", ret)
	ok(t, "GpuInstance.Destroy", any.Destroy())
}

func TestEvents(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "dgx-a100")
	lib := open(t, r)
	set, ret := lib.EventSetCreate()
	ok(t, "EventSetCreate", ret)
	for i := range 8 {
		d := device(t, lib, i)
		mask, ret := d.GetSupportedEventTypes()
		ok(t, "GetSupportedEventTypes", ret)
		ok(t, "RegisterEvents", d.RegisterEvents(mask&(gonvml.EventTypeXidCriticalError|gonvml.EventTypeDoubleBitEccError|gonvml.EventTypeSingleBitEccError), set))
	}
	_, ret = set.Wait(10)
	want(t, "Wait without event", ret, gonvml.ERROR_TIMEOUT)
	if err := r.Machine.RaiseXID(r.Machine.Profile().GPUs[5].Devices[1].UUID, 48); err != nil {
		t.Fatal(err)
	}
	if err := r.Machine.Lose(r.Machine.Profile().GPUs[2].UUID); err != nil {
		t.Fatal(err)
	}
	e, ret := set.Wait(5000)
	ok(t, "Wait", ret)
	if e.Device != device(t, lib, 5) || e.EventType != gonvml.EventTypeXidCriticalError || e.EventData != 48 || e.GpuInstanceId != 2 || e.ComputeInstanceId != 0 {
		t.Errorf("event is %+v", e)
	}
	e, ret = set.Wait(5000)
	ok(t, "Wait", ret)
	if e.EventData != 79 || e.GpuInstanceId != 0xffffffff {
		t.Errorf("event is %+v", e)
	}
	_, ret = lib.DeviceGetHandleByIndex(2)
	want(t, "a lost GPU", ret, gonvml.ERROR_GPU_IS_LOST)
	_, ret = set.Wait(10)
	want(t, "Wait after all events", ret, gonvml.ERROR_TIMEOUT)
	ok(t, "EventSetFree", set.Free())
	_, ret = set.Wait(10)
	want(t, "Wait on a freed set", ret, gonvml.ERROR_INVALID_ARGUMENT)
}

// A process has the GPUs whose nodes it can open, and no others.
func TestVisibility(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "dgx-a100")
	remove := func(node string) {
		if err := os.Remove(filepath.Join(r.Dir, "dev", node)); err != nil {
			t.Fatal(err)
		}
	}
	// What is left are the GPUs with minors 2 and 6, NVML's 0 and 4, and on the
	// second the MIG devices in GPU instances 7 and 9.
	for _, minor := range []int{0, 1, 3, 4, 5, 7} {
		remove(fmt.Sprintf("nvidia%d", minor))
	}
	for _, gi := range []int{8, 10, 11, 12, 13} {
		remove(fmt.Sprintf("nvidia-caps/nvidia-cap%d", sim.GICap(6, gi)))
	}
	remove(fmt.Sprintf("nvidia-caps/nvidia-cap%d", sim.CapConfig))
	lib := open(t, r)
	if n, ret := lib.DeviceGetCount(); ret != gonvml.SUCCESS || n != 2 {
		t.Fatalf("%d GPUs are visible (%v), want 2", n, ret)
	}
	d := device(t, lib, 1)
	if minor, ret := d.GetMinorNumber(); ret != gonvml.SUCCESS || minor != 6 {
		t.Errorf("GPU 1 has minor %d (%v), want 6", minor, ret)
	}
	if index, ret := d.GetIndex(); ret != gonvml.SUCCESS || index != 1 {
		t.Errorf("its index is %d (%v), want 1", index, ret)
	}
	_, ret := lib.DeviceGetHandleByUUID(string(r.Machine.Profile().GPUs[1].UUID))
	want(t, "a GPU that is not visible", ret, gonvml.ERROR_NOT_FOUND)
	second, ret := d.GetMigDeviceHandleByIndex(1)
	ok(t, "GetMigDeviceHandleByIndex(1)", ret)
	if id, ret := second.GetGpuInstanceId(); ret != gonvml.SUCCESS || id != 9 {
		t.Errorf("the second visible MIG device is in GPU instance %d (%v), want 9", id, ret)
	}
	if index, ret := second.GetIndex(); ret != gonvml.SUCCESS || index != 1 {
		t.Errorf("its index is %d (%v), want 1", index, ret)
	}
	_, ret = d.GetMigDeviceHandleByIndex(2)
	want(t, "GetMigDeviceHandleByIndex(2)", ret, gonvml.ERROR_NOT_FOUND)
	_, ret = lib.DeviceGetHandleByUUID(string(r.Machine.Profile().GPUs[4].Devices[1].UUID))
	want(t, "a MIG device that is not visible", ret, gonvml.ERROR_NOT_FOUND)
	p, ret := d.GetGpuInstanceProfileInfo(0)
	ok(t, "GetGpuInstanceProfileInfo", ret)
	_, ret = d.CreateGpuInstance(&p)
	want(t, "creating without the capability", ret, gonvml.ERROR_NO_PERMISSION)
}

func TestDriverComesAndGoes(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "t4x1")
	path := filepath.Join(r.Dir, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	lib := open(t, r)
	d := device(t, lib, 0)
	r.Stop()
	_, ret := d.GetName()
	want(t, "GetName without simulator", ret, gonvml.ERROR_DRIVER_NOT_LOADED)
	want(t, "Init without simulator", gonvml.New(gonvml.WithLibraryPath(path)).Init(), gonvml.ERROR_DRIVER_NOT_LOADED)
	r.Start(t)
	if _, ret = d.GetName(); ret != gonvml.SUCCESS {
		t.Errorf("the session did not survive a restart of the simulator: %v", ret)
	}
	for _, step := range []struct {
		verb string
		want gonvml.Return
	}{
		{"unload", gonvml.ERROR_DRIVER_NOT_LOADED},
		{"load", gonvml.ERROR_UNINITIALIZED},
		{"load 590.44.01", gonvml.ERROR_LIB_RM_VERSION_MISMATCH},
	} {
		if _, err := r.Machine.Control(strings.Fields(step.verb)); err != nil {
			t.Fatal(err)
		}
		_, ret = d.GetName()
		want(t, "GetName after "+step.verb, ret, step.want)
	}
	again := open(t, r)
	if v, ret := again.SystemGetDriverVersion(); ret != gonvml.SUCCESS || v != "590.44.01" {
		t.Errorf("the new driver is %s (%v)", v, ret)
	}
	if err := r.Machine.Remove(r.Machine.Profile().GPUs[0].UUID); err != nil {
		t.Fatal(err)
	}
	other := gonvml.New(gonvml.WithLibraryPath(path))
	want(t, "Init without GPUs", other.Init(), gonvml.ERROR_GPU_NOT_FOUND)
}

func TestManyThreads(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "h100x8")
	lib := open(t, r)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 300 {
				index := (i + n) % 8
				d, ret := lib.DeviceGetHandleByIndex(index)
				if ret != gonvml.SUCCESS {
					t.Errorf("DeviceGetHandleByIndex: %v", ret)
					return
				}
				uuid, ret := d.GetUUID()
				if want := string(r.Machine.Profile().GPUs[index].UUID); ret != gonvml.SUCCESS || uuid != want {
					t.Errorf("GPU %d is %s (%v), want %s", index, uuid, ret, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The error texts of the library are those of package sim.
func TestErrorStrings(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	lib := open(t, simtest.Play(t, "none"))
	for code := range 40 {
		if got, want := lib.ErrorString(gonvml.Return(code)), sim.Return(code).Error(); got != want {
			t.Errorf("code %d is %q in the library and %q in the simulator", code, got, want)
		}
	}
}

// header is the directory of NVIDIA's header, which go-nvml carries.
func header(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// The compiler compares our prototypes with NVIDIA's, and a program prints the
// layout of every struct as each of the two headers makes it.
func TestABIAgreesWithNVIDIAsHeader(t *testing.T) {
	dir := header(t)
	files, err := filepath.Glob("src/*.c")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	withHeader := []string{`-DNVML_HEADER="nvml.h"`, "-I", dir}
	args := append([]string{"-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"}, withHeader...)
	if out, err := exec.Command("gcc", append(args, files...)...).CombinedOutput(); err != nil {
		t.Errorf("our functions are not NVIDIA's: %v\n%s", err, out)
	}
	layout := func(flags ...string) string {
		t.Helper()
		exe := filepath.Join(t.TempDir(), "layout")
		source := exe + ".c"
		if err := os.WriteFile(source, []byte(layoutProgram(t)), 0o644); err != nil {
			t.Fatal(err)
		}
		args := append(slices.Clone(flags), "-I", "src", "-o", exe, source)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("compile: %v\n%s", err, out)
		}
		out, err := exec.Command(exe).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if diff := cmp.Diff(layout(withHeader...), layout()); diff != "" {
		t.Errorf("struct layouts (-NVIDIA's +ours):\n%s", diff)
	}
}

var (
	structForm = regexp.MustCompile(`(?s)typedef struct \{(.*?)\} (nvml\w+);`)
	fieldForm  = regexp.MustCompile(`(\w+)(?:\[\d+\])?\s*[,;]`)
)

// layoutProgram is C that prints size and field offsets of each struct in abi.h.
func layoutProgram(t *testing.T) string {
	t.Helper()
	abi, err := os.ReadFile("src/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	structs := structForm.FindAllStringSubmatch(string(abi), -1)
	if len(structs) < 25 {
		t.Fatalf("found only %d structs in abi.h", len(structs))
	}
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"abi.h\"\nint main(void) {\n")
	for _, s := range structs {
		fmt.Fprintf(&b, "printf(\"%s %%zu\\n\", sizeof(%s));\n", s[2], s[2])
		for _, f := range fieldForm.FindAllStringSubmatch(s[1], -1) {
			fmt.Fprintf(&b, "printf(\"  %s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s*)0)->%s));\n", f[1], s[2], f[1], s[2], f[1])
		}
	}
	b.WriteString("return 0; }\n")
	return b.String()
}

// The library must load where the C library is old.
func TestNeedsOnlyOldLibc(t *testing.T) {
	file := filepath.Join(t.TempDir(), libnvml.SOName)
	if err := libnvml.Build(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"libc.so.6"}, needed); diff != "" {
		t.Errorf("needed libraries (-want +got):\n%s", diff)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		version := strings.Split(strings.TrimPrefix(s.Version, "GLIBC_"), ".")
		if s.Version == "" || len(version) < 2 {
			continue
		}
		if minor, err := strconv.Atoi(version[1]); err != nil || version[0] != "2" || minor > 17 {
			t.Errorf("%s needs %s", s.Name, s.Version)
		}
	}
	exported, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range exported {
		if s.Section != elf.SHN_UNDEF && !strings.HasPrefix(s.Name, "nvml") {
			t.Errorf("exports %s", s.Name)
		}
	}
}

// Every call the library makes is in the simulator's table, and the other way
// round, but for those that are for nvidia-smi alone.
func TestCallsAgree(t *testing.T) {
	files, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	name := regexp.MustCompile(`"((?:Device|GpuInstance|ComputeInstance|System|EventSet)[A-Z]\w+|Init)"`)
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			for _, m := range name.FindAllStringSubmatch(lines.Text(), -1) {
				made[m[1]] = true
			}
		}
		f.Close()
	}
	got := make([]string, 0, len(made))
	for n := range made {
		got = append(got, n)
	}
	slices.Sort(got)
	want := slices.DeleteFunc(sim.CallNames(), func(n string) bool { return n == "DeviceReset" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-table +library):\n%s", diff)
	}
}
