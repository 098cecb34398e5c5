package v1beta1

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// MpsConfig is the settings of the strategy MPS. Each one is passed to the
// MPS control daemon of the claim; one that is left out is not set at all.
type MpsConfig struct {
	// DefaultActiveThreadPercentage limits the share of the device's threads
	// that a client may use, 0 to 100.
	DefaultActiveThreadPercentage *int `json:"defaultActiveThreadPercentage,omitempty"`
	// DefaultPinnedDeviceMemoryLimit limits the device memory of a client, on
	// every device of the claim.
	DefaultPinnedDeviceMemoryLimit *MemoryLimit `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// DefaultPerDevicePinnedMemoryLimit replaces that limit for single
	// devices. A key is the UUID of the device, or its place among the devices
	// of this configuration when their UUIDs are sorted, counted from 0.
	DefaultPerDevicePinnedMemoryLimit map[string]MemoryLimit `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser lets processes of different users share one daemon.
	MultiUser *bool `json:"multiUser,omitempty"`
}

var (
	deviceUUID  = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	deviceIndex = regexp.MustCompile(`^(0|[1-9][0-9]{0,3})$`)
)

// validate checks the settings for devices whose UUIDs begin with prefix,
// "GPU" or "MIG".
func (c *MpsConfig) validate(prefix string) error {
	if c == nil {
		return nil
	}
	var errs []error
	if p := c.DefaultActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		errs = append(errs, fmt.Errorf("sharing.mpsConfig.defaultActiveThreadPercentage: %d is not a percentage: use 0 to 100", *p))
	}
	if l := c.DefaultPinnedDeviceMemoryLimit; l != nil {
		if _, err := l.MiB(); err != nil {
			errs = append(errs, fmt.Errorf("sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: %w", err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.DefaultPerDevicePinnedMemoryLimit)) {
		if _, err := c.DefaultPerDevicePinnedMemoryLimit[key].MiB(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", perDevice(key), err))
		}
		if uuid := deviceUUID.FindStringSubmatch(key); uuid != nil && uuid[1] != prefix {
			errs = append(errs, fmt.Errorf("%s: names a %s device, but the configuration is for %s devices",
				perDevice(key), uuid[1], prefix))
		} else if uuid == nil && !deviceIndex.MatchString(key) {
			errs = append(errs, fmt.Errorf("%s: the key is neither a UUID as `nvidia-smi -L` prints it nor an index like \"0\"",
				perDevice(key)))
		}
	}
	return together(errs...)
}

// perDevice is the path of one per-device limit in an error.
func perDevice(key string) string {
	return fmt.Sprintf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[%q]", key)
}

// PinnedMemoryLimits says which limit each device gets, as the MPS control
// daemon wants it ("512M"), by UUID. uuids are the devices that the
// configuration was given to, in any order. A device without a limit is not
// in the answer. It is an error when a key means none of the devices, or when
// two keys mean the same one.
func (c *MpsConfig) PinnedMemoryLimits(uuids []string) (map[string]string, error) {
	limits := make(map[string]string)
	if c == nil {
		return limits, nil
	}
	sorted := slices.Sorted(slices.Values(uuids))
	if l := c.DefaultPinnedDeviceMemoryLimit; l != nil {
		mib, err := l.MiB()
		if err != nil {
			return nil, fmt.Errorf("sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: %w", err)
		}
		for _, uuid := range sorted {
			limits[uuid] = fmt.Sprintf("%dM", mib)
		}
	}
	keyOf := make(map[string]string) // device → the key that set its limit
	for _, key := range slices.Sorted(maps.Keys(c.DefaultPerDevicePinnedMemoryLimit)) {
		uuid, err := findDevice(key, sorted)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", perDevice(key), err)
		}
		if other, twice := keyOf[uuid]; twice {
			return nil, fmt.Errorf("%s: means device %s, which key %q has set already", perDevice(key), uuid, other)
		}
		keyOf[uuid] = key
		mib, err := c.DefaultPerDevicePinnedMemoryLimit[key].MiB()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", perDevice(key), err)
		}
		limits[uuid] = fmt.Sprintf("%dM", mib)
	}
	return limits, nil
}

// findDevice is the device that a key means.
func findDevice(key string, sorted []string) (string, error) {
	if slices.Contains(sorted, key) {
		return key, nil
	}
	if !deviceIndex.MatchString(key) {
		return "", fmt.Errorf("invalid device: the claim has no device %q under this configuration", key)
	}
	i, err := strconv.Atoi(key)
	if err != nil || i >= len(sorted) {
		return "", fmt.Errorf("invalid device: index %s is out of range, %d devices have this configuration", key, len(sorted))
	}
	return sorted[i], nil
}
