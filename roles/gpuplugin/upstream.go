package gpuplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"nvdra/nvml"
	"nvdra/roles/internal/claims"
)

// errUpstreamDamaged says that a file is not what the DRA Driver for NVIDIA GPUs
// writes.
var errUpstreamDamaged = errors.New("it is damaged")

// The states in which the DRA Driver remembers claims. Its oldest files have none.
const (
	upstreamStarted   = "PrepareStarted"
	upstreamCompleted = "PrepareCompleted"
)

// An upstreamCheckpoint is what the DRA Driver for NVIDIA GPUs remembers of a
// node, in checkpoint.json. Fields that are not known here are ignored: newer
// versions add some, and this is read to take over what is there, not to judge
// it. Its checksums are over what the version that wrote it would have written,
// which nobody else can compute, so they are not looked at.
type upstreamCheckpoint struct {
	bootID string // "" in files of old versions
	claims []upstreamClaim
}

// An upstreamClaim is a claim as the DRA Driver remembers it.
type upstreamClaim struct {
	uid types.UID
	err error // why the rest could not be read

	State     string          `json:"checkpointState"`
	Namespace string          `json:"namespace"` // only while it is being prepared
	Name      string          `json:"name"`      // likewise
	Groups    []upstreamGroup `json:"preparedDevices"`
	Status    json.RawMessage `json:"status"` // of the ResourceClaim
}

// An upstreamGroup are devices that were set up together.
type upstreamGroup struct {
	Devices []upstreamDevice `json:"devices"`
	Config  struct {
		MPSDaemon  string `json:"mpsControlDaemonID"`
		TimeSliced *bool  `json:"timeSliceApplied"` // versions before 0.4.1 do not say
	} `json:"configState"`
}

// An upstreamDevice is a prepared device, of one of three kinds.
type upstreamDevice struct {
	GPU  *upstreamGPU  `json:"gpu"`
	MIG  *upstreamMIG  `json:"mig"`
	VFIO *upstreamVFIO `json:"vfio"`
}

type upstreamGPU struct {
	Info struct {
		UUID nvml.UUID `json:"uuid"`
	} `json:"info"`
	Device upstreamNames `json:"device"`
}

type upstreamMIG struct {
	Concrete struct {
		UUID       nvml.UUID `json:"migUUID"`
		ParentUUID nvml.UUID `json:"parentUUID"`
		ParentPCI  string    `json:"parentPCIBusID"` // newer versions
	} `json:"concrete"`
	Device upstreamNames `json:"device"`
}

type upstreamVFIO struct {
	Info struct {
		UUID nvml.UUID `json:"uuid"`
		PCI  string    `json:"pciBusID"` // newer versions
	} `json:"info"`
	Device upstreamNames `json:"device"`
}

// upstreamNames are what kubelet was told of a device.
type upstreamNames struct {
	Requests     []string `json:"Requests"`
	PoolName     string   `json:"PoolName"`
	DeviceName   string   `json:"DeviceName"`
	CDIDeviceIDs []string `json:"CDIDeviceIDs"`
}

// upstreamStatus is what is of interest in the status of a ResourceClaim.
type upstreamStatus struct {
	Allocation struct {
		Devices struct {
			Results []struct {
				Request string `json:"request"`
				Driver  string `json:"driver"`
				Device  string `json:"device"`
				Admin   bool   `json:"adminAccess"`
			} `json:"results"`
			Config []struct {
				Opaque struct {
					Driver     string          `json:"driver"`
					Parameters json.RawMessage `json:"parameters"`
				} `json:"opaque"`
			} `json:"config"`
		} `json:"devices"`
	} `json:"allocation"`
}

// parseUpstream reads a checkpoint.json. What it cannot read as a whole wraps
// errUpstreamDamaged; a claim that it cannot read is there with its error.
func parseUpstream(data []byte) (upstreamCheckpoint, error) {
	type version struct {
		BootID string                     `json:"nodeBootID"`
		Claims map[string]json.RawMessage `json:"preparedClaims"`
	}
	var f struct {
		V1 *version `json:"v1"`
		V2 *version `json:"v2"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return upstreamCheckpoint{}, fmt.Errorf("%w: %w", errUpstreamDamaged, err)
	}
	v, oldest := f.V2, false
	if v == nil {
		v, oldest = f.V1, true
	}
	if v == nil {
		return upstreamCheckpoint{}, fmt.Errorf(`%w: it has neither "v1" nor "v2"`, errUpstreamDamaged)
	}
	c := upstreamCheckpoint{bootID: v.BootID}
	for _, uid := range slices.Sorted(maps.Keys(v.Claims)) {
		claim := upstreamClaim{}
		if err := json.Unmarshal(v.Claims[uid], &claim); err != nil {
			claim = upstreamClaim{err: err}
		}
		claim.uid = types.UID(uid)
		if claim.State == "" && (oldest || len(claim.Groups) > 0) {
			claim.State = upstreamCompleted
		}
		c.claims = append(c.claims, claim)
	}
	return c, nil
}

// ref names the claim. It has a name as long as it is not ready.
func (c upstreamClaim) ref() claims.Ref {
	if c.Namespace == "" || c.Name == "" {
		return claims.Ref{UID: c.uid} // one without the other is of no use
	}
	return claims.Ref{UID: c.uid, Namespace: c.Namespace, Name: c.Name}
}

// devices is how many devices the claim has.
func (c upstreamClaim) devices() int {
	n := 0
	for _, g := range c.Groups {
		n += len(g.Devices)
	}
	return n
}

// names are what kubelet was told of the device, whichever kind it is.
func (d upstreamDevice) names() upstreamNames {
	switch {
	case d.GPU != nil:
		return d.GPU.Device
	case d.MIG != nil:
		return d.MIG.Device
	case d.VFIO != nil:
		return d.VFIO.Device
	}
	return upstreamNames{}
}

// status is what is known of the claim's allocation. That it cannot be read
// loses only refinements.
func (c upstreamClaim) status() (upstreamStatus, error) {
	var s upstreamStatus
	if len(c.Status) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(c.Status, &s); err != nil {
		return upstreamStatus{}, fmt.Errorf("read its status: %w", err)
	}
	return s, nil
}

// admin reports whether the claim has the device only to look on: if all
// requests that it answers ask for that.
func (s upstreamStatus) admin(driver string, n upstreamNames) bool {
	admin := false
	for _, r := range s.Allocation.Devices.Results {
		if r.Driver != driver || r.Device != n.DeviceName || !slices.Contains(n.Requests, r.Request) {
			continue
		}
		if !r.Admin {
			return false
		}
		admin = true
	}
	return admin
}

// timeSliced reports whether the claim's configuration asks for a time slice
// other than the default.
func (s upstreamStatus) timeSliced(driver string) bool {
	for _, c := range s.Allocation.Devices.Config {
		var p struct {
			Sharing struct {
				Strategy    string `json:"strategy"`
				TimeSlicing struct {
					Interval string `json:"interval"`
				} `json:"timeSlicingConfig"`
			} `json:"sharing"`
		}
		if c.Opaque.Driver != driver || json.Unmarshal(c.Opaque.Parameters, &p) != nil {
			continue // not for us, or not for GPUs
		}
		if i := p.Sharing.TimeSlicing.Interval; p.Sharing.Strategy == "TimeSlicing" && i != "" && i != "Default" {
			return true
		}
	}
	return false
}
