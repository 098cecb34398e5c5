package main

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimSpec asks for one device of a driver. The class of a driver has its name.
func claimSpec(driver string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name:    "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
	}}}}
}

// makeClaims makes claims in the API server, each with another device of the
// driver. It allocates them itself, as the scheduler would, so that no pod is
// needed.
func (b *bench) makeClaims(ctx context.Context, driver, name string, n int) ([]*resourceapi.ResourceClaim, error) {
	var all []*resourceapi.ResourceClaim
	claims := b.kube.ResourceV1().ResourceClaims(namespace)
	for i := range n {
		c, err := claims.Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i), Namespace: namespace},
			Spec:       claimSpec(driver),
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create claim: %w", err)
		}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: nodeName, Device: fmt.Sprintf("gpu-%d", i%devices)}},
		}}
		if c, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("allocate claim: %w", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// deleteClaims deletes what makeClaims made.
func (b *bench) deleteClaims(ctx context.Context, all []*resourceapi.ResourceClaim) error {
	for _, c := range all {
		if err := b.kube.ResourceV1().ResourceClaims(namespace).Delete(ctx, c.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete claim: %w", err)
		}
	}
	return nil
}
