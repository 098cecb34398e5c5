package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"rsc.io/script"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// prepareVerb does what kubelet does before it starts a pod.
func prepareVerb(w *world) script.Cmd {
	const example = `It prints one line for each device: request, device, CDI devices. The latter must be found in the CDI directory at
	that moment, by the library that container runtimes use. Several claims are prepared in one call.
	prepare job
	prepare job other &`
	return call("CLAIM…", "have kubelet prepare claims", example, func(s *script.State, args []string) (func() (string, error), error) {
		if len(args) == 0 {
			return nil, usage("prepare takes claims")
		}
		ctx := s.Context()
		return func() (string, error) { return w.prepare(ctx, args) }, nil
	})
}

// prepare prepares claims and checks the answer as kubelet and the runtime do.
func (w *world) prepare(ctx context.Context, names []string) (string, error) {
	var claims []*drapb.Claim
	for _, name := range names {
		if _, err := w.claim(ctx, name); err != nil {
			return "", err
		}
		c, err := w.toCall(name)
		if err != nil {
			return "", err
		}
		claims = append(claims, c)
	}
	answers, err := w.kubelet.prepare(ctx, gpuDriver, claims)
	if err != nil {
		return "", errors.New(w.anonymous(err.Error()))
	}
	var all []string
	var errs []error
	for _, c := range claims {
		a, ok := answers[c.Uid]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: the plugin does not answer for it", c.Name))
		case a.Error != "":
			errs = append(errs, fmt.Errorf("%s: %s", c.Name, w.anonymous(a.Error)))
		default:
			errs = append(errs, w.runtimeFinds(a.Devices))
			all = append(all, w.describe(a.Devices)...)
		}
	}
	return lines(all), errors.Join(errs...)
}

// describe shows the devices of an answer, sorted.
func (w *world) describe(devices []*drapb.Device) []string {
	var all []string
	for _, d := range devices {
		line := strings.Join(append([]string{strings.Join(d.RequestNames, ","), d.DeviceName}, d.CdiDeviceIds...), " ")
		if d.PoolName != w.node.Name {
			line += " pool " + d.PoolName
		}
		all = append(all, w.anonymous(line))
	}
	slices.Sort(all)
	return all
}

// runtimeFinds makes sure that a container runtime would find the devices.
func (w *world) runtimeFinds(devices []*drapb.Device) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(w.cdiRoot()), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	for _, d := range devices {
		for _, id := range d.CdiDeviceIds {
			if cache.GetDevice(id) == nil {
				return errors.New(w.anonymous(fmt.Sprintf("find CDI device %s in %s: it is not there: %v", id, w.cdiRoot(), cache.GetErrors())))
			}
		}
	}
	return nil
}

// unprepareVerb does what kubelet does when a pod is gone.
func unprepareVerb(w *world) script.Cmd {
	const example = `The claim need not exist any more. With -uid it has never existed here.
	unprepare job
	unprepare -uid 11111111-2222-3333-4444-555555555555 stranger`
	return call("[-uid UID] CLAIM…", "have kubelet unprepare claims", example, func(s *script.State, args []string) (func() (string, error), error) {
		if len(args) == 3 && args[0] == "-uid" {
			w.remember(args[2], types.UID(args[1]))
			args = args[2:]
		}
		if len(args) == 0 {
			return nil, usage("unprepare takes claims")
		}
		ctx := s.Context()
		return func() (string, error) { return "", w.unprepare(ctx, args) }, nil
	})
}

func (w *world) unprepare(ctx context.Context, names []string) error {
	var claims []*drapb.Claim
	for _, name := range names {
		c, err := w.toCall(name)
		if err != nil {
			return err
		}
		claims = append(claims, c)
	}
	answers, err := w.kubelet.unprepare(ctx, gpuDriver, claims)
	if err != nil {
		return errors.New(w.anonymous(err.Error()))
	}
	var errs []error
	for _, c := range claims {
		switch a, ok := answers[c.Uid]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: the plugin does not answer for it", c.Name))
		case a.GetError() != "":
			errs = append(errs, fmt.Errorf("%s: %s", c.Name, w.anonymous(a.Error)))
		}
	}
	return errors.Join(errs...)
}
