package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/simtest"
)

// ask runs nvidia-smi in this process against a root.
func ask(root string, line string) (out string, err error) {
	var b bytes.Buffer
	err = smi(strings.Fields(line), root, &b)
	return b.String(), err
}

func TestList(t *testing.T) {
	r := simtest.Play(t, "dgx-a100")
	var want strings.Builder
	for i, b := range r.Machine.Profile().GPUs {
		fmt.Fprintf(&want, "GPU %d: NVIDIA A100-SXM4-80GB (UUID: %s)\n", i, b.UUID)
		for j, d := range b.Devices {
			fmt.Fprintf(&want, "  MIG %s     Device %2d: (UUID: %s)\n", d.Profile, j, d.UUID)
		}
	}
	got, err := ask(r.Dir, "-L")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("nvidia-smi -L (-want +got):\n%s", diff)
	}

	// As in a container that was given GPU 5 and its second MIG device.
	for _, minor := range []int{0, 1, 2, 3, 4, 5, 6} {
		if err := os.Remove(filepath.Join(r.Dir, fmt.Sprintf("dev/nvidia%d", minor))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(r.Dir, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", sim.GICap(7, 1)))); err != nil {
		t.Fatal(err)
	}
	b := r.Machine.Profile().GPUs[5]
	if got, err = ask(r.Dir, "-L"); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("GPU 0: NVIDIA A100-SXM4-80GB (UUID: %s)\n  MIG 3g.40gb     Device  0: (UUID: %s)\n", b.UUID, b.Devices[1].UUID); got != want {
		t.Errorf("in a container: got\n%swant\n%s", got, want)
	}
	if err := os.Remove(filepath.Join(r.Dir, "dev/nvidia7")); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(r.Dir, "-L"); err == nil || err.Error() != "No devices were found" {
		t.Errorf("without devices: %v", err)
	}
}

// A story told in commands and what they answer. A line that begins with "ctl"
// goes to the simulator.
func TestCommands(t *testing.T) {
	r := simtest.Play(t, "h100x8")
	uuid := r.Machine.Profile().GPUs[1].UUID
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"--query-gpu=index,uuid,memory.total,pci.bus_id,mig.mode.current,compute_mode --format=csv,noheader -i 1",
			fmt.Sprintf("1, %s, 81559 MiB, 00000000:43:00.0, Disabled, Default\n", uuid), 0},
		{"--query-gpu=name,driver_version,compute_cap,memory.total --format=csv,nounits --id=" + string(uuid),
			"name, driver_version, compute_cap, memory.total\nNVIDIA H100 80GB HBM3, 580.95.05, 9.0, 81559\n", 0},
		{"--version", "NVIDIA-SMI version  : 580.95.05\nNVML version        : 580.95\nDRIVER version      : 580.95.05\nCUDA Version        : 13.0\n", 0},
		{"mig -lgi", "No MIG-enabled devices found.", exitNoDevices},
		{"-i 1 -mig 1", "Enabled MIG Mode for GPU 00000000:43:00.0\nAll done.\n", 0},
		{"mig -lgi", "No GPU instances found: Not Found", exitNoDevices},
		{"mig -lgipp -i 1", "GPU  1 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\nGPU  1 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1\n" +
			"GPU  1 Profile ID 15 Placements: {0,2,4,6}:2\nGPU  1 Profile ID 14 Placements: {0,2,4}:2\nGPU  1 Profile ID  9 Placements: {0,4}:4\n" +
			"GPU  1 Profile ID  5 Placements: {0}:4\nGPU  1 Profile ID  0 Placements: {0}:8\n", 0},
		{"mig -cgi 9:4,1g.10gb -C -i 43:00.0",
			"Successfully created GPU instance ID  2 on GPU  1 using profile MIG 3g.40gb (ID  9)\n" +
				"Successfully created compute instance ID  0 on GPU  1 GPU instance ID  2 using profile MIG 3g.40gb (ID  2)\n" +
				"Successfully created GPU instance ID  7 on GPU  1 using profile MIG 1g.10gb (ID 19)\n" +
				"Successfully created compute instance ID  0 on GPU  1 GPU instance ID  7 using profile MIG 1g.10gb (ID  0)\n", 0},
		{"mig -cgi 0", "Unable to create a GPU instance on GPU  1 using profile 0: Insufficient Resources\nFailed to create GPU instances: Insufficient Resources", 23},
		{"-i 1 -mig 0", "Unable to set MIG Mode for GPU 00000000:43:00.0: In use by another client", 19},
		{"mig -dgi -gi 7", "Unable to destroy GPU instance ID  7 from GPU  1: In use by another client\nFailed to destroy GPU instances: In use by another client", 19},
		{"mig -dci", "Successfully destroyed compute instance ID  0 from GPU  1 GPU instance ID  2\n" +
			"Successfully destroyed compute instance ID  0 from GPU  1 GPU instance ID  7\n", 0},
		{"mig -cci 0,0 -gi 2", "Successfully created compute instance ID  0 on GPU  1 GPU instance ID  2 using profile MIG 1c.3g.40gb (ID  0)\n" +
			"Successfully created compute instance ID  1 on GPU  1 GPU instance ID  2 using profile MIG 1c.3g.40gb (ID  0)\n", 0},
		{"mig -dci -gi 2 -ci 1", "Successfully destroyed compute instance ID  1 from GPU  1 GPU instance ID  2\n", 0},
		{"mig -dci -gi 2", "Successfully destroyed compute instance ID  0 from GPU  1 GPU instance ID  2\n", 0},
		{"mig -dgi", "Successfully destroyed GPU instance ID  2 from GPU  1\nSuccessfully destroyed GPU instance ID  7 from GPU  1\n", 0},
		{"mig -cgi 77", "Invalid GPU instance profile \"77\". Please run 'nvidia-smi mig -lgip'.", exitInvalid},
		{"-i 1 -mig 0", "Disabled MIG Mode for GPU 00000000:43:00.0\nAll done.\n", 0},
		{"-i 0 -pm 1", "Enabled persistence mode for GPU 00000000:1B:00.0.\nAll done.\n", 0},
		{"-i 0 -c EXCLUSIVE_PROCESS", "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:1B:00.0.\nAll done.\n", 0},
		{"-i 0 --query-gpu=compute_mode,persistence_mode --format=csv,noheader", "Exclusive_Process, Enabled\n", 0},
		{"ctl busy 0 4711", "", 0},
		{"--gpu-reset -i 0", "GPU 00000000:1B:00.0 could not be reset: In use by another client", 19},
		{"ctl idle 0", "", 0},
		{"--gpu-reset -i 0", "GPU 00000000:1B:00.0 was successfully reset.\nAll done.\n", 0},
		{"-i 9", "No devices were found with ID 9", exitNoDevices},
		{"-q", "Option \"-q\" is not recognized, or not simulated. Please run 'nvidia-smi -h'.", exitInvalid},
		{"--query-gpu=warmth --format=csv", "Field \"warmth\" is not a valid field to query, or not simulated.", exitInvalid},
		{"ctl lose 2", "", 0},
		{"-L -i 2", fmt.Sprintf("Unable to determine the device handle for GPU2: %s: GPU is lost.  Reboot the system to recover this GPU", r.Machine.Profile().GPUs[2].UUID), 15},
		{"--query-gpu=index,name --format=csv,noheader -i 2", "2, [GPU is lost]\n", 0},
		{"ctl unload", "", 0},
		{"-L", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n(simulated driver: Driver Not Loaded)", exitNoDriver},
	} {
		if verb, ok := strings.CutPrefix(c.line, "ctl "); ok {
			if _, err := r.Machine.Control(strings.Fields(verb)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := ask(r.Dir, c.line)
		code := 0
		if err != nil {
			got += err.Error()
			f, ok := err.(*failure)
			if !ok {
				t.Errorf("%s: error without an exit code: %v", c.line, err)
				continue
			}
			code = f.code
		}
		if diff := cmp.Diff(c.want, got); diff != "" || code != c.code {
			t.Errorf("nvidia-smi %s: exit %d, want %d (-want +got):\n%s", c.line, code, c.code, diff)
		}
	}
}

func TestTable(t *testing.T) {
	r := simtest.Play(t, "mixed")
	got, err := ask(r.Dir, "")
	if err != nil {
		t.Fatal(err)
	}
	width := 0
	for line := range strings.Lines(got) {
		if width == 0 {
			width = len(line)
		}
		if len(line) != width {
			t.Errorf("a line is %d wide, not %d: %s", len(line), width, line)
		}
	}
	for _, want := range []string{"Driver Version: 580.95.05", "CUDA Version: 13.0", "Tesla T4", "NVIDIA L40S", "46068 MiB", "N/A"} {
		if !strings.Contains(got, want) {
			t.Errorf("the table has no %q:\n%s", want, got)
		}
	}
}

func TestOthersSayThatTheyAreNotSimulated(t *testing.T) {
	for _, name := range []string{"nvidia-imex", "nvidia-persistenced", "nvidia-cuda-mps-control"} {
		var out, errs bytes.Buffer
		if code := run(name, nil, &out, &errs); code != 1 || out.Len() > 0 || errs.String() != name+": the simulated driver does not run it yet\n" {
			t.Errorf("%s: exit %d, %q, %q", name, code, out.String(), errs.String())
		}
	}
}
