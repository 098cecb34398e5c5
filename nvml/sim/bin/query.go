package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"nvdra/nvml/sim"
)

// A field is something --query-gpu can ask for.
type field struct {
	names []string
	unit  string
	get   func(d *driver, g gpu) (string, error)
}

const mib = 1 << 20

// fields are what --query-gpu knows.
var fields = []field{
	{[]string{"index"}, "", func(d *driver, g gpu) (string, error) { return strconv.Itoa(g.index), nil }},
	{[]string{"count"}, "", func(d *driver, g gpu) (string, error) { return strconv.Itoa(len(d.gpus)), nil }},
	{[]string{"uuid", "gpu_uuid"}, "", func(d *driver, g gpu) (string, error) { return d.one("DeviceGetUUID", g.uuid) }},
	{[]string{"name", "gpu_name"}, "", func(d *driver, g gpu) (string, error) { return d.one("DeviceGetName", g.uuid) }},
	{[]string{"serial", "gpu_serial"}, "", func(d *driver, g gpu) (string, error) { return d.one("DeviceGetSerial", g.uuid) }},
	{[]string{"driver_version"}, "", func(d *driver, g gpu) (string, error) { return d.one("SystemGetDriverVersion") }},
	{[]string{"pci.bus_id", "gpu_bus_id"}, "", func(d *driver, g gpu) (string, error) { return d.busID(g.uuid) }},
	{[]string{"memory.total"}, "MiB", memory(0)},
	{[]string{"memory.reserved"}, "MiB", memory(1)},
	{[]string{"memory.free"}, "MiB", memory(2)},
	{[]string{"memory.used"}, "MiB", memory(3)},
	{[]string{"mig.mode.current"}, "", migMode(0)},
	{[]string{"mig.mode.pending"}, "", migMode(1)},
	{[]string{"compute_mode"}, "", func(d *driver, g gpu) (string, error) {
		n, err := d.one("DeviceGetComputeMode", g.uuid)
		for _, m := range computeModes {
			if m.number == n {
				return m.shown, err
			}
		}
		return n, err
	}},
	{[]string{"persistence_mode"}, "", func(d *driver, g gpu) (string, error) {
		on, err := d.one("DeviceGetPersistenceMode", g.uuid)
		return enabled(on), err
	}},
	{[]string{"compute_cap"}, "", func(d *driver, g gpu) (string, error) {
		f, err := d.Call("DeviceGetCudaComputeCapability", g.uuid)
		return strings.Join(f, "."), err
	}},
}

func memory(i int) func(*driver, gpu) (string, error) {
	return func(d *driver, g gpu) (string, error) {
		f, err := d.Call("DeviceGetMemoryInfo", g.uuid)
		if err != nil {
			return "", err
		}
		n, err := strconv.ParseUint(f[i], 10, 64)
		return strconv.FormatUint(n/mib, 10), err
	}
}

func migMode(i int) func(*driver, gpu) (string, error) {
	return func(d *driver, g gpu) (string, error) {
		f, err := d.Call("DeviceGetMigMode", g.uuid)
		if err != nil {
			return "", err
		}
		return enabled(f[i]), nil
	}
}

func enabled(digit string) string {
	if digit == "1" {
		return "Enabled"
	}
	return "Disabled"
}

// printQuery prints the fields as comma separated values.
func (d *driver) printQuery(out io.Writer, gpus []gpu, query, format string) error {
	header, units := true, true
	parts := strings.Split(format, ",")
	if parts[0] != "csv" {
		return failf(exitInvalid, "Format %q is not simulated; use csv, perhaps with noheader and nounits", format)
	}
	for _, p := range parts[1:] {
		switch p {
		case "noheader":
			header = false
		case "nounits":
			units = false
		default:
			return failf(exitInvalid, "Format %q is not simulated; use csv, perhaps with noheader and nounits", format)
		}
	}
	var chosen []field
	var titles []string
	for _, name := range strings.Split(query, ",") {
		f, ok := fieldNamed(name)
		if !ok {
			return failf(exitInvalid, "Field %q is not a valid field to query, or not simulated.", name)
		}
		chosen = append(chosen, f)
		if f.unit != "" && units {
			name += " [" + f.unit + "]"
		}
		titles = append(titles, name)
	}
	if header {
		fmt.Fprintln(out, strings.Join(titles, ", "))
	}
	for _, g := range gpus {
		var values []string
		for _, f := range chosen {
			v, err := f.get(d, g)
			switch {
			case errors.Is(err, sim.NotSupported):
				v = "[N/A]"
			case errors.Is(err, sim.GPUIsLost):
				v = "[GPU is lost]"
			case err != nil:
				v = "[" + err.Error() + "]"
			case f.unit != "" && units:
				v += " " + f.unit
			}
			values = append(values, v)
		}
		fmt.Fprintln(out, strings.Join(values, ", "))
	}
	return nil
}

func fieldNamed(name string) (field, bool) {
	for _, f := range fields {
		for _, n := range f.names {
			if n == name {
				return f, true
			}
		}
	}
	return field{}, false
}

// printTable prints a short form of the table nvidia-smi is known for.
func (d *driver) printTable(out io.Writer, gpus []gpu) error {
	version, err := d.one("SystemGetDriverVersion")
	if err != nil {
		return err
	}
	cuda, err := d.cuda()
	if err != nil {
		return err
	}
	rule := "+" + strings.Repeat("-", 103) + "+\n"
	row := func(format string, args ...any) { fmt.Fprintf(out, "| %-101s |\n", fmt.Sprintf(format, args...)) }
	io.WriteString(out, rule)
	row("NVIDIA-SMI %-26s Driver Version: %-22s CUDA Version: %s", version, version, cuda)
	io.WriteString(out, rule)
	row("GPU  Name                       Bus-Id                  Memory-Usage            Compute M.    MIG M.")
	io.WriteString(out, rule)
	get := func(g gpu, name string) string {
		f, _ := fieldNamed(name)
		v, err := f.get(d, g)
		switch {
		case errors.Is(err, sim.NotSupported):
			return "N/A"
		case err != nil:
			return "ERR!"
		}
		return v
	}
	for _, g := range gpus {
		row("%3d  %-26s %-18s  %6s / %6s MiB  %18s  %8s", g.index, get(g, "name"), g.pci, get(g, "memory.used"), get(g, "memory.total"),
			get(g, "compute_mode"), get(g, "mig.mode.current"))
		if g.lost != nil {
			continue
		}
		mig, err := d.mig(g.uuid)
		if err != nil {
			return unusable(g, err)
		}
		for i, m := range mig {
			row("       MIG %-11s Device %2d  %s", m.name, i, m.uuid)
		}
	}
	io.WriteString(out, rule)
	return nil
}
