package e2e

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// deviceClasses are the classes that are installed.
type deviceClasses []resourceapi.DeviceClass

// List implements structured.DeviceClassLister.
func (d deviceClasses) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for i := range d {
		all = append(all, &d[i])
	}
	return all, nil
}

// Get implements structured.DeviceClassLister.
func (d deviceClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	for i := range d {
		if d[i].Name == name {
			return &d[i], nil
		}
	}
	return nil, fmt.Errorf("find DeviceClass %s: it is not installed", name)
}

// features are those the scheduler has by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
}

var celCache = cel.NewCache(100, cel.Features{})

// errUnsatisfiable says that the node has not what a claim asks for, now.
var errUnsatisfiable = errors.New("the node has not what the claim asks for")

// allocate gives a claim devices of the node, as the scheduler would, and
// writes down that it did.
func (w *world) allocate(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	classes, err := w.api.kube.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list classes: %w", err)
	}
	slices, err := w.slices(ctx)
	if err != nil {
		return err
	}
	taken, err := w.taken(ctx)
	if err != nil {
		return err
	}
	var all []*resourceapi.ResourceSlice
	for i := range slices {
		all = append(all, &slices[i])
	}
	allocator, err := structured.NewAllocator(ctx, features, structured.AllocatedState{
		AllocatedDevices: taken, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}, deviceClasses(classes.Items), all, celCache)
	if err != nil {
		return fmt.Errorf("allocate claim %s: %w", claim.Name, err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node.Name, Labels: w.node.Labels}}
	result, err := allocator.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return fmt.Errorf("allocate claim %s: %w", claim.Name, err)
	}
	if len(result) != 1 {
		return fmt.Errorf("allocate claim %s: %w", claim.Name, errUnsatisfiable)
	}
	return w.setAllocation(ctx, claim, &result[0])
}

// force gives a claim certain devices, whatever anybody thinks of it.
func (w *world) force(ctx context.Context, claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult) error {
	allocation := &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	for _, c := range claim.Spec.Devices.Config {
		allocation.Devices.Config = append(allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: c.Requests, DeviceConfiguration: c.DeviceConfiguration,
		})
	}
	return w.setAllocation(ctx, claim, allocation)
}

func (w *world) setAllocation(ctx context.Context, claim *resourceapi.ResourceClaim, allocation *resourceapi.AllocationResult) error {
	claim = claim.DeepCopy()
	claim.Status.Allocation = allocation
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-of-" + claim.Name, UID: types.UID(uuid.NewUUID())}}
	if _, err := w.api.kube.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("allocate claim %s: %w", claim.Name, err)
	}
	return nil
}

// taken are the devices that claims have which do not share them.
func (w *world) taken(ctx context.Context) (sets.Set[structured.DeviceID], error) {
	claims, err := w.api.kube.ResourceV1().ResourceClaims(w.node.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	taken := sets.New[structured.DeviceID]()
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.AdminAccess == nil || !*r.AdminAccess {
				taken.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
			}
		}
	}
	return taken, nil
}

// slices are what the node has published.
func (w *world) slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := w.api.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + w.node.Name,
	})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	return list.Items, nil
}
