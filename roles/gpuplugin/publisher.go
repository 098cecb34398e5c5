package gpuplugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"nvdra/nvml"
)

// A publisher makes the slices follow the machine, and tells people about what
// is left out: in the log and as Events on the Node, once for each change.
type publisher struct {
	log      *zap.Logger
	nodeName string
	publish  func(context.Context, resourceslice.DriverResources) error
	warn     func(reason, note string) // an Event on the Node
	machine  *machine

	mu       sync.Mutex
	last     *resourceslice.DriverResources
	problems []string
	trouble  string                 // of the driver
	gpus     map[nvml.UUID]nvml.GPU // of the last reading
}

// Reasons of Events on the Node.
const (
	reasonDriverMissing = "NVIDIADriverNotReady"
	reasonNoGPUs        = "NoGPUsFound"
	reasonLeftOut       = "GPULeftOut"
	reasonGone          = "GPUGone"
)

// Changed is called after every reading of the machine.
func (p *publisher) Changed(ctx context.Context, inv *inventory, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell(inv, err)
	if err != nil && !p.machine.Away() {
		return // what was published last still holds, as far as anybody knows
	}
	next := resources(p.nodeName, inv.devices)
	if p.last != nil && apiequality.Semantic.DeepEqual(*p.last, next) {
		return
	}
	if err := p.publish(ctx, next); err != nil {
		p.log.Error("publish slices", zap.Error(err))
		return
	}
	p.last = &next
	p.log.Info("publish slices", zap.Int("devices", len(inv.devices)), zap.Int("gpus", len(inv.gpus)),
		zap.String("driverVersion", inv.driver.Version), zap.Strings("names", deviceNames(inv)))
}

func deviceNames(inv *inventory) []string {
	var all []string
	for _, d := range inv.devices {
		all = append(all, d.Name())
	}
	return all
}

// tell says what is wrong with the machine when that has changed.
func (p *publisher) tell(inv *inventory, err error) {
	trouble, reason := "", ""
	switch {
	case err != nil:
		trouble, reason = fmt.Sprintf("GPUs of this node cannot be read: %v", err), reasonDriverMissing
	case len(inv.gpus) == 0:
		trouble, reason = "the NVIDIA driver answers, but it has no GPU; the node offers none until one appears", reasonNoGPUs
	}
	if trouble != p.trouble {
		p.trouble = trouble
		if trouble == "" {
			p.log.Info("read GPUs: all is well again")
		} else {
			p.log.Warn("read GPUs", zap.String("problem", trouble))
			p.warn(reason, trouble)
		}
	}
	if err != nil {
		return // the problems are those of the last reading
	}
	for _, problem := range inv.problems {
		if !slices.Contains(p.problems, problem) {
			p.log.Warn("read GPUs", zap.String("problem", problem))
			p.warn(reasonLeftOut, strings.ToUpper(problem[:1])+problem[1:])
		}
	}
	p.problems = inv.problems
	for uuid, gpu := range p.gpus {
		if _, there := inv.gpus[uuid]; !there {
			// What cannot be read any more often has no name any more either.
			note := fmt.Sprintf("GPU %s (%s at %s, /dev/nvidia%d) was here before and cannot be read now: it was removed or is lost; "+
				"claims that have it must be deleted with their pods", uuid, gpu.Product, gpu.PCI, gpu.Minor)
			p.log.Warn("read GPUs", zap.String("problem", note))
			p.warn(reasonGone, note)
		}
	}
	p.gpus = inv.gpus
}
