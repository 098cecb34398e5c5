package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// visibleLimit is how long devices may take to be visible.
const visibleLimit = time.Minute

// slicesOf selects the slices of a driver.
func slicesOf(driver string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver).String()}
}

// watchDevices does something and waits until all devices of a driver are visible
// in the API server. It returns when they were.
func (b *bench) watchDevices(ctx context.Context, driver string, begin func() error) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, visibleLimit, fmt.Errorf("not after %v", visibleLimit))
	defer cancel()
	events, err := b.kube.ResourceV1().ResourceSlices().Watch(ctx, slicesOf(driver))
	if err != nil {
		return time.Time{}, fmt.Errorf("watch slices of %s: %w", driver, err)
	}
	defer events.Stop()
	if err := begin(); err != nil {
		return time.Time{}, err
	}
	seen, err := awaitDevices(ctx, events)
	if err != nil {
		return time.Time{}, fmt.Errorf("wait for the devices of %s: %w", driver, err)
	}
	return seen, nil
}

func awaitDevices(ctx context.Context, events watch.Interface) (time.Time, error) {
	in := map[string]int{} // devices by slice
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case e, open := <-events.ResultChan():
			now := time.Now()
			if !open {
				return time.Time{}, errors.New("the API server ended the watch")
			}
			s, ok := e.Object.(*resourceapi.ResourceSlice)
			if !ok {
				return time.Time{}, fmt.Errorf("the watch reports %s: %v", e.Type, e.Object)
			}
			if in[s.Name] = len(s.Spec.Devices); e.Type == watch.Deleted {
				delete(in, s.Name)
			}
			total := 0
			for _, n := range in {
				total += n
			}
			if total == devices {
				return now, nil
			}
		}
	}
}

// deleteSlices makes the API server forget the devices of a driver.
func (b *bench) deleteSlices(ctx context.Context, driver string) error {
	if err := b.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, slicesOf(driver)); err != nil {
		return fmt.Errorf("delete slices of %s: %w", driver, err)
	}
	return nil
}
