package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"nvdra/nvml/sim"
)

// migOptions are the flags of nvidia-smi mig.
type migOptions struct {
	profiles, placements, instances, compute bool // list
	create, createCI                         string
	withCompute, destroy, destroyCI          bool
	ids, gi, ci                              string
}

func parseMIG(args []string) (migOptions, error) {
	var o migOptions
	flags := map[string]any{
		"-lgip": &o.profiles, "--list-gpu-instance-profiles": &o.profiles,
		"-lgipp": &o.placements, "--list-gpu-instance-possible-placements": &o.placements,
		"-lgi": &o.instances, "--list-gpu-instances": &o.instances,
		"-lci": &o.compute, "--list-compute-instances": &o.compute,
		"-cgi": &o.create, "--create-gpu-instance": &o.create, "-C": &o.withCompute, "--default-compute-instance": &o.withCompute,
		"-cci": &o.createCI, "--create-compute-instance": &o.createCI,
		"-dgi": &o.destroy, "--destroy-gpu-instance": &o.destroy, "-dci": &o.destroyCI, "--destroy-compute-instance": &o.destroyCI,
		"-i": &o.ids, "--id": &o.ids, "-gi": &o.gi, "--gpu-instance-id": &o.gi, "-ci": &o.ci, "--compute-instance-id": &o.ci,
	}
	for len(args) > 0 {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		switch target := flags[name].(type) {
		case *bool:
			*target = true
		case *string:
			if !joined && len(args) > 0 {
				value, args = args[0], args[1:]
			}
			if value == "" {
				return o, failf(exitInvalid, "Option %s needs a value", name)
			}
			*target = value
		default:
			return o, failf(exitInvalid, "Option %q is not recognized, or not simulated. Please run 'nvidia-smi -h'.", name)
		}
	}
	return o, nil
}

// smiMIG is nvidia-smi mig.
func smiMIG(args []string, root string, out io.Writer) error {
	o, err := parseMIG(args)
	if err != nil {
		return err
	}
	d, err := open(root)
	if err != nil {
		return err
	}
	defer d.Close()
	gpus, err := d.choose(o.ids)
	if err != nil {
		return err
	}
	gpus, err = d.divided(gpus)
	if err != nil {
		return err
	}
	switch {
	case o.profiles:
		return d.listProfiles(out, gpus)
	case o.placements:
		return d.listPlacements(out, gpus)
	case o.instances:
		return d.listInstances(out, gpus)
	case o.compute:
		return d.listCompute(out, gpus)
	}
	if err := d.mayChangeMIG(); err != nil {
		return failf(int(sim.NoPermission), "Unable to change MIG instances: %v", err)
	}
	switch {
	case o.create != "":
		return d.createInstances(out, gpus, o.create, o.withCompute)
	case o.createCI != "":
		return d.createCompute(out, gpus, o.createCI, o.gi)
	case o.destroyCI:
		return d.destroyCompute(out, gpus, o.gi, o.ci)
	case o.destroy:
		return d.destroyInstances(out, gpus, o.gi)
	}
	return failf(exitInvalid, "No action is given. Please run 'nvidia-smi -h'.")
}

// divided keeps the GPUs in MIG mode.
func (d *driver) divided(gpus []gpu) ([]gpu, error) {
	var on []gpu
	for _, g := range gpus {
		if g.lost != nil {
			return nil, unusable(g, g.lost)
		}
		mode, err := d.one("DeviceGetMigMode", g.uuid)
		if err != nil && !errors.Is(err, sim.NotSupported) {
			return nil, unusable(g, err)
		}
		if mode == "1" {
			on = append(on, g)
		}
	}
	if len(on) == 0 {
		return nil, failf(exitNoDevices, "No MIG-enabled devices found.")
	}
	return on, nil
}

// A profile is a GPU instance profile as the driver describes it.
type profile struct {
	id, slices, instances, sm, ce, dec, enc, jpeg, ofa, memory int
	name                                                       string // "1g.10gb"
}

// profileCount is more than NVML has.
const profileCount = 32

func (d *driver) profiles(g gpu) ([]profile, error) {
	var found []profile
	for i := range profileCount {
		f, err := d.Call("DeviceGetGpuInstanceProfileInfo", g.uuid, strconv.Itoa(i))
		if errors.Is(err, sim.NotSupported) || errors.Is(err, sim.InvalidArgument) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var p profile
		for j, n := range []*int{&p.id, &p.slices, &p.instances, &p.sm, &p.ce, &p.dec, &p.enc, &p.jpeg, &p.ofa, &p.memory} {
			if *n, err = strconv.Atoi(f[j]); err != nil {
				return nil, fmt.Errorf("read MIG profile: %w", err)
			}
		}
		p.name = strings.TrimPrefix(f[10], "MIG ")
		found = append(found, p)
	}
	// As the driver lists them: small before large.
	slices.SortStableFunc(found, func(a, b profile) int {
		if a.slices != b.slices {
			return a.slices - b.slices
		}
		if a.memory != b.memory {
			return a.memory - b.memory
		}
		return len(a.name) - len(b.name)
	})
	return found, nil
}

// A box is a table with lines of one width.
type box struct {
	out   io.Writer
	width int
}

func (b box) rule()        { fmt.Fprintf(b.out, "+%s+\n", strings.Repeat("-", b.width)) }
func (b box) double()      { fmt.Fprintf(b.out, "|%s|\n", strings.Repeat("=", b.width)) }
func (b box) row(s string) { fmt.Fprintf(b.out, "|%-*s|\n", b.width, s) }
func (b box) head(rows ...string) {
	b.rule()
	for _, r := range rows {
		b.row(r)
	}
	b.double()
}

func (d *driver) listProfiles(out io.Writer, gpus []gpu) error {
	b := box{out, 77}
	b.head(" GPU instance profiles:",
		" GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC",
		"                              Free/Total   GiB              CE    JPEG  OFA")
	for _, g := range gpus {
		list, err := d.profiles(g)
		if err != nil {
			return unusable(g, err)
		}
		for _, p := range list {
			free, err := d.one("DeviceGetGpuInstanceRemainingCapacity", g.uuid, strconv.Itoa(p.id))
			if err != nil {
				return unusable(g, err)
			}
			gib := fmt.Sprintf("%.2f", float64(p.memory)/1024)
			b.row(fmt.Sprintf(" %3d  MIG %-12s %3d     %s/%d        %-11sNo     %-7d%-6d%d", g.index, p.name, p.id, free, p.instances, gib, p.sm, p.dec, p.enc))
			b.row(fmt.Sprintf("%61s%-6d%-6d%d", "", p.ce, p.jpeg, p.ofa))
			b.rule()
		}
	}
	return nil
}

func (d *driver) listPlacements(out io.Writer, gpus []gpu) error {
	for _, g := range gpus {
		list, err := d.profiles(g)
		if err != nil {
			return unusable(g, err)
		}
		for _, p := range list {
			f, err := d.Call("DeviceGetGpuInstancePossiblePlacements", g.uuid, strconv.Itoa(p.id))
			if err != nil || len(f) < 2 {
				return unusable(g, err)
			}
			var starts []string
			for i := 0; i+1 < len(f); i += 2 {
				starts = append(starts, f[i])
			}
			fmt.Fprintf(out, "GPU %2d Profile ID %2d Placements: {%s}:%s\n", g.index, p.id, strings.Join(starts, ","), f[1])
		}
	}
	return nil
}

// An instance is a GPU instance that exists.
type instance struct {
	handle      string
	id          int
	profile     profile
	start, size string
}

// instancesOf lists the GPU instances of a GPU, in order of their ids.
func (d *driver) instancesOf(g gpu) ([]instance, error) {
	list, err := d.profiles(g)
	if err != nil {
		return nil, err
	}
	var found []instance
	for _, p := range list {
		handles, err := d.Call("DeviceGetGpuInstances", g.uuid, strconv.Itoa(p.id))
		if err != nil {
			return nil, err
		}
		for _, h := range handles {
			f, err := d.Call("GpuInstanceGetInfo", h)
			if err != nil {
				return nil, err
			}
			id, err := strconv.Atoi(f[1])
			if err != nil {
				return nil, fmt.Errorf("read GPU instance: %w", err)
			}
			found = append(found, instance{h, id, p, f[3], f[4]})
		}
	}
	slices.SortFunc(found, func(a, b instance) int { return a.id - b.id })
	return found, nil
}

func (d *driver) listInstances(out io.Writer, gpus []gpu) error {
	b := box{out, 55}
	any := false
	for _, g := range gpus {
		list, err := d.instancesOf(g)
		if err != nil {
			return unusable(g, err)
		}
		for _, gi := range list {
			if !any {
				b.head(" GPU instances:", " GPU   Name             Profile  Instance   Placement", "                          ID       ID       Start:Size")
				any = true
			}
			b.row(fmt.Sprintf(" %3d  MIG %-13s %3d       %2d          %s:%s", g.index, gi.profile.name, gi.profile.id, gi.id, gi.start, gi.size))
			b.rule()
		}
	}
	if !any {
		return failf(exitNoDevices, "No GPU instances found: Not Found")
	}
	return nil
}

// A compute is a compute instance that exists.
type compute struct {
	handle                   string
	id, profile, start, size string
}

// computeOf lists the compute instances of a GPU instance.
func (d *driver) computeOf(gi instance) ([]compute, error) {
	var found []compute
	for id := range 8 {
		h, err := d.one("GpuInstanceGetComputeInstanceById", gi.handle, strconv.Itoa(id))
		if errors.Is(err, sim.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := d.Call("ComputeInstanceGetInfo", h)
		if err != nil {
			return nil, err
		}
		found = append(found, compute{h, f[2], f[3], f[4], f[5]})
	}
	return found, nil
}

func (d *driver) listCompute(out io.Writer, gpus []gpu) error {
	b := box{out, 68}
	any := false
	for _, g := range gpus {
		list, err := d.instancesOf(g)
		if err != nil {
			return unusable(g, err)
		}
		for _, gi := range list {
			cis, err := d.computeOf(gi)
			if err != nil {
				return unusable(g, err)
			}
			for _, ci := range cis {
				if !any {
					b.head(" Compute instances:", " GPU     GPU       Name             Profile   Instance   Placement",
						"       Instance                       ID        ID       Start:Size", "         ID")
					any = true
				}
				name := gi.profile.name
				if ci.size != strconv.Itoa(gi.profile.slices) {
					name = ci.size + "c." + name
				}
				b.row(fmt.Sprintf(" %3d     %2d       MIG %-15s %2s         %s          %s:%s", g.index, gi.id, name, ci.profile, ci.id, ci.start, ci.size))
				b.rule()
			}
		}
	}
	if !any {
		return failf(exitNoDevices, "No compute instances found: Not Found")
	}
	return nil
}

// pick finds the profile and the start in "19", "19:3", "3g.40gb" or "3g.40gb:4".
func pick(list []profile, s string) (profile, []string, error) {
	name, start, placed := strings.Cut(s, ":")
	for _, p := range list {
		if strconv.Itoa(p.id) != name && !strings.EqualFold(p.name, strings.TrimPrefix(name, "MIG ")) {
			continue
		}
		if !placed {
			return p, nil, nil
		}
		if _, err := strconv.ParseUint(start, 10, 8); err != nil {
			return p, nil, failf(exitInvalid, "Invalid placement %q: it must be the number of a memory slice", start)
		}
		return p, []string{start}, nil
	}
	return profile{}, nil, failf(exitInvalid, "Invalid GPU instance profile %q. Please run 'nvidia-smi mig -lgip'.", name)
}

func (d *driver) createInstances(out io.Writer, gpus []gpu, what string, withCompute bool) error {
	for _, g := range gpus {
		list, err := d.profiles(g)
		if err != nil {
			return unusable(g, err)
		}
		for _, w := range strings.Split(what, ",") {
			p, placement, err := pick(list, w)
			if err != nil {
				return err
			}
			handle, err := d.one("DeviceCreateGpuInstance", append([]string{g.uuid, strconv.Itoa(p.id)}, placement...)...)
			if err != nil {
				return said(err, "Unable to create a GPU instance on GPU %2d using profile %d: %v\nFailed to create GPU instances: %v", g.index, p.id, err, err)
			}
			info, err := d.Call("GpuInstanceGetInfo", handle)
			if err != nil {
				return unusable(g, err)
			}
			fmt.Fprintf(out, "Successfully created GPU instance ID %2s on GPU %2d using profile MIG %s (ID %2d)\n", info[1], g.index, p.name, p.id)
			if !withCompute {
				continue
			}
			id, err := strconv.Atoi(info[1])
			if err != nil {
				return fmt.Errorf("read GPU instance: %w", err)
			}
			if err := d.addCompute(out, g, instance{handle: handle, id: id, profile: p}, p.slices); err != nil {
				return err
			}
		}
	}
	return nil
}

// ciProfiles are the ids of compute instance profiles by their slices.
var ciProfiles = map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}

// addCompute makes a compute instance of so many slices.
func (d *driver) addCompute(out io.Writer, g gpu, gi instance, slices int) error {
	id := ciProfiles[slices]
	handle, err := d.one("GpuInstanceCreateComputeInstance", gi.handle, strconv.Itoa(id))
	if err != nil {
		return said(err, "Unable to create a compute instance on GPU %2d GPU instance ID %2d using profile %d: %v\nFailed to create compute instances: %v", g.index, gi.id, id, err, err)
	}
	info, err := d.Call("ComputeInstanceGetInfo", handle)
	if err != nil {
		return unusable(g, err)
	}
	name := gi.profile.name
	if slices != gi.profile.slices {
		name = fmt.Sprintf("%dc.%s", slices, name)
	}
	fmt.Fprintf(out, "Successfully created compute instance ID %2s on GPU %2d GPU instance ID %2d using profile MIG %s (ID %2d)\n", info[2], g.index, gi.id, name, id)
	return nil
}

func (d *driver) createCompute(out io.Writer, gpus []gpu, what, gi string) error {
	return d.each(gpus, gi, func(g gpu, gi instance) error {
		for _, w := range strings.Split(what, ",") {
			id, err := strconv.Atoi(w)
			slices := 0
			for s, i := range ciProfiles {
				if err == nil && i == id {
					slices = s
				}
			}
			if slices == 0 {
				return failf(exitInvalid, "Invalid compute instance profile %q: it must be an id such as 0", w)
			}
			if err := d.addCompute(out, g, gi, slices); err != nil {
				return err
			}
		}
		return nil
	})
}

// each does something to the GPU instances with the ids given, or to all.
func (d *driver) each(gpus []gpu, ids string, act func(gpu, instance) error) error {
	found := false
	for _, g := range gpus {
		list, err := d.instancesOf(g)
		if err != nil {
			return unusable(g, err)
		}
		for _, gi := range list {
			if ids != "" && !slices.Contains(strings.Split(ids, ","), strconv.Itoa(gi.id)) {
				continue
			}
			found = true
			if err := act(g, gi); err != nil {
				return err
			}
		}
	}
	if !found {
		return failf(exitNoDevices, "No GPU instances found: Not Found")
	}
	return nil
}

func (d *driver) destroyInstances(out io.Writer, gpus []gpu, ids string) error {
	return d.each(gpus, ids, func(g gpu, gi instance) error {
		if _, err := d.Call("GpuInstanceDestroy", gi.handle); err != nil {
			return said(err, "Unable to destroy GPU instance ID %2d from GPU %2d: %v\nFailed to destroy GPU instances: %v", gi.id, g.index, err, err)
		}
		fmt.Fprintf(out, "Successfully destroyed GPU instance ID %2d from GPU %2d\n", gi.id, g.index)
		return nil
	})
}

func (d *driver) destroyCompute(out io.Writer, gpus []gpu, ids, ciIDs string) error {
	found := false
	err := d.each(gpus, ids, func(g gpu, gi instance) error {
		list, err := d.computeOf(gi)
		if err != nil {
			return unusable(g, err)
		}
		for _, ci := range list {
			if ciIDs != "" && !slices.Contains(strings.Split(ciIDs, ","), ci.id) {
				continue
			}
			found = true
			if _, err := d.Call("ComputeInstanceDestroy", ci.handle); err != nil {
				return said(err, "Unable to destroy compute instance ID %2s from GPU %2d GPU instance ID %2d: %v\nFailed to destroy compute instances: %v", ci.id, g.index, gi.id, err, err)
			}
			fmt.Fprintf(out, "Successfully destroyed compute instance ID %2s from GPU %2d GPU instance ID %2d\n", ci.id, g.index, gi.id)
		}
		return nil
	})
	if err == nil && !found {
		return failf(exitNoDevices, "No compute instances found: Not Found")
	}
	return err
}
