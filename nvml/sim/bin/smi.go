package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"nvdra/nvml/sim"
)

// options are the flags of nvidia-smi that are simulated.
type options struct {
	list, version, reset, help bool
	ids, query, format         string
	mig, persistence, compute  string
}

const usage = `nvidia-smi of a simulated driver. It knows:
  nvidia-smi [-i ID]                          the table
  nvidia-smi -L [-i ID]                       GPUs and MIG devices
  nvidia-smi --version
  nvidia-smi --query-gpu=FIELD,… --format=csv[,noheader][,nounits] [-i ID]
  nvidia-smi -mig 0|1 | -pm 0|1 | -c MODE | --gpu-reset [-i ID]
  nvidia-smi mig -lgip | -lgipp | -lgi | -lci [-i ID]
  nvidia-smi mig -cgi PROFILE[:START],… [-C] | -cci PROFILE,… [-gi ID] | -dgi [-gi ID] | -dci [-gi ID] [-ci ID] [-i ID]
ID is an index, UUID or PCI address, or several with commas between.`

// smi is nvidia-smi.
func smi(args []string, root string, out io.Writer) error {
	if len(args) > 0 && args[0] == "mig" {
		return smiMIG(args[1:], root, out)
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.help {
		fmt.Fprintln(out, usage)
		return nil
	}
	d, err := open(root)
	if err != nil {
		return err
	}
	defer d.Close()
	switch {
	case o.version:
		return d.printVersion(out)
	}
	gpus, err := d.choose(o.ids)
	if err != nil {
		return err
	}
	switch {
	case o.list:
		return d.printList(out, gpus)
	case o.query != "":
		return d.printQuery(out, gpus, o.query, o.format)
	case o.mig != "":
		return d.setMIG(out, gpus, o.mig)
	case o.persistence != "":
		return d.setPersistence(out, gpus, o.persistence)
	case o.compute != "":
		return d.setCompute(out, gpus, o.compute)
	case o.reset:
		return d.resetAll(out, gpus)
	}
	return d.printTable(out, gpus)
}

// parse reads the flags. A value follows its flag, or "=" in the same word.
func parse(args []string) (options, error) {
	var o options
	flags := map[string]any{
		"-L": &o.list, "--list-gpus": &o.list, "--version": &o.version, "-h": &o.help, "--help": &o.help,
		"-r": &o.reset, "--gpu-reset": &o.reset,
		"-i": &o.ids, "--id": &o.ids, "--query-gpu": &o.query, "--format": &o.format,
		"-mig": &o.mig, "--multi-instance-gpu": &o.mig, "-pm": &o.persistence, "--persistence-mode": &o.persistence,
		"-c": &o.compute, "--compute-mode": &o.compute,
	}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		name, value, joined := strings.Cut(word, "=")
		switch target := flags[name].(type) {
		case *bool:
			*target = true
		case *string:
			if !joined {
				if len(args) == 0 {
					return o, failf(exitInvalid, "Option %s needs a value", name)
				}
				value, args = args[0], args[1:]
			}
			if value == "" {
				return o, failf(exitInvalid, "Option %s needs a value", name)
			}
			*target = value
		default:
			return o, failf(exitInvalid, "Option %q is not recognized, or not simulated. Please run 'nvidia-smi -h'.", word)
		}
	}
	if o.query != "" && o.format == "" {
		return o, failf(exitInvalid, "Option \"--query-gpu\" requires \"--format\"")
	}
	return o, nil
}

func (d *driver) printVersion(out io.Writer) error {
	driver, err := d.one("SystemGetDriverVersion")
	if err != nil {
		return err
	}
	cuda, err := d.cuda()
	if err != nil {
		return err
	}
	nvml := driver
	if parts := strings.SplitN(driver, ".", 3); len(parts) == 3 {
		nvml = parts[0] + "." + parts[1]
	}
	fmt.Fprintf(out, "NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %s\n", driver, nvml, driver, cuda)
	return nil
}

// cuda is the CUDA version as people write it.
func (d *driver) cuda() (string, error) {
	s, err := d.one("SystemGetCudaDriverVersion")
	if err != nil {
		return "", err
	}
	var n int
	if _, err := fmt.Sscan(s, &n); err != nil {
		return "", fmt.Errorf("read CUDA version %q: %w", s, err)
	}
	return fmt.Sprintf("%d.%d", n/1000, n%1000/10), nil
}

// unusable says what nvidia-smi says of a GPU that does not answer.
func unusable(g gpu, err error) error {
	text := fmt.Sprintf("Unable to determine the device handle for GPU%d: %s: %v", g.index, g.uuid, err)
	if errors.Is(err, sim.GPUIsLost) {
		text += ".  Reboot the system to recover this GPU"
	}
	return said(err, "%s", text)
}

func (d *driver) printList(out io.Writer, gpus []gpu) error {
	for _, g := range gpus {
		if g.lost != nil {
			return unusable(g, g.lost)
		}
		name, err := d.one("DeviceGetName", g.uuid)
		if err != nil {
			return unusable(g, err)
		}
		fmt.Fprintf(out, "GPU %d: %s (UUID: %s)\n", g.index, name, g.uuid)
		mig, err := d.mig(g.uuid)
		if err != nil {
			return unusable(g, err)
		}
		for i, m := range mig {
			fmt.Fprintf(out, "  MIG %-11s Device %2d: (UUID: %s)\n", m.name, i, m.uuid)
		}
	}
	return nil
}

func onOff(s string) (bool, error) {
	switch strings.ToUpper(s) {
	case "0", "DISABLED":
		return false, nil
	case "1", "ENABLED":
		return true, nil
	}
	return false, failf(exitInvalid, "Invalid value %q: it must be 0 or 1", s)
}

func digit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func (d *driver) setMIG(out io.Writer, gpus []gpu, value string) error {
	enable, err := onOff(value)
	if err != nil {
		return err
	}
	word, pending := "Disabled", "disable"
	if enable {
		word, pending = "Enabled", "enable"
	}
	for _, g := range gpus {
		if g.lost != nil {
			return unusable(g, g.lost)
		}
		if _, err := d.Call("DeviceGetMigMode", g.uuid); errors.Is(err, sim.NotSupported) {
			fmt.Fprintf(out, "Unable to set MIG Mode for GPU %s: Not Supported\n", g.pci)
			continue
		}
		if err := d.mayChangeMIG(); err != nil {
			return failf(int(sim.NoPermission), "Unable to set MIG Mode for GPU %s: %v", g.pci, err)
		}
		activation, err := d.one("DeviceSetMigMode", g.uuid, digit(enable))
		if err != nil {
			return said(err, "Unable to set MIG Mode for GPU %s: %v", g.pci, err)
		}
		if code, err := sim.ParseReturn(activation); err != nil || code != sim.Success {
			fmt.Fprintf(out, "Warning: MIG mode is in pending %s state for GPU %s:%v\n", pending, g.pci, code)
			continue
		}
		fmt.Fprintf(out, "%s MIG Mode for GPU %s\n", word, g.pci)
	}
	fmt.Fprintln(out, "All done.")
	return nil
}

func (d *driver) setPersistence(out io.Writer, gpus []gpu, value string) error {
	on, err := onOff(value)
	if err != nil {
		return err
	}
	word := "Disabled"
	if on {
		word = "Enabled"
	}
	for _, g := range gpus {
		if _, err := d.Call("DeviceSetPersistenceMode", g.uuid, digit(on)); err != nil {
			return said(err, "Unable to set persistence mode for GPU %s: %v", g.pci, err)
		}
		fmt.Fprintf(out, "%s persistence mode for GPU %s.\n", word, g.pci)
	}
	fmt.Fprintln(out, "All done.")
	return nil
}

// computeModes are NVML's numbers, and how --query-gpu and -c write them.
var computeModes = []struct{ number, shown, set string }{
	{"0", "Default", "DEFAULT"}, {"1", "Exclusive_Thread", "EXCLUSIVE_THREAD"},
	{"2", "Prohibited", "PROHIBITED"}, {"3", "Exclusive_Process", "EXCLUSIVE_PROCESS"},
}

func (d *driver) setCompute(out io.Writer, gpus []gpu, value string) error {
	for _, m := range computeModes {
		if m.number != value && m.set != strings.ToUpper(value) {
			continue
		}
		for _, g := range gpus {
			if _, err := d.Call("DeviceSetComputeMode", g.uuid, m.number); err != nil {
				return said(err, "Unable to set the compute mode for GPU %s: %v", g.pci, err)
			}
			fmt.Fprintf(out, "Set compute mode to %s for GPU %s.\n", m.set, g.pci)
		}
		fmt.Fprintln(out, "All done.")
		return nil
	}
	return failf(exitInvalid, "Invalid compute mode %q: it must be DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED or their number", value)
}

// resetAll resets GPUs. One that is lost cannot be reset from here.
func (d *driver) resetAll(out io.Writer, gpus []gpu) error {
	for _, g := range gpus {
		if _, err := d.Call("DeviceReset", g.uuid); err != nil {
			return said(err, "GPU %s could not be reset: %v", g.pci, err)
		}
		fmt.Fprintf(out, "GPU %s was successfully reset.\n", g.pci)
	}
	fmt.Fprintln(out, "All done.")
	return nil
}
