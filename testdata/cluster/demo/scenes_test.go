package main

import (
	"os"
	"path/filepath"
	"testing"
)

const twoGPUs = `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)
  MIG 1g.10gb     Device  0: (UUID: MIG-b)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-c)
nvidia0
`

func TestChecksCanFail(t *testing.T) {
	s := parse(twoGPUs)
	if len(s.gpus) != 2 || len(s.migs) != 1 || s.gpus[1] != "GPU-c" || s.migs[0] != "MIG-b" {
		t.Fatalf("parsed %+v", s)
	}
	one := saw{gpus: []string{"GPU-a"}}
	for name, c := range map[string]struct {
		seen map[string]saw
		fine bool
		do   func(map[string]saw) error
	}{
		"each":            {map[string]saw{"a/w": one}, true, each(1, 0)},
		"each, too many":  {map[string]saw{"a/w": s}, false, each(1, 0)},
		"same GPU":        {map[string]saw{"a/w": one, "b/w": one}, true, distinct(1)},
		"not distinct":    {map[string]saw{"a/w": one, "b/w": one}, false, distinct(2)},
		"two of three":    {map[string]saw{"pod/1": one, "pod/2": one, "pod/no-gpu": {}}, true, twoOfThree},
		"GPU leaks":       {map[string]saw{"pod/1": one, "pod/2": one, "pod/no-gpu": one}, false, twoOfThree},
		"container has 0": {map[string]saw{"pod/1": {}, "pod/no-gpu": {}}, false, twoOfThree},
	} {
		if err := c.do(c.seen); (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManifestsExist(t *testing.T) {
	for _, s := range append(scenes, scene{file: impossible}) {
		if _, err := os.Stat(filepath.Join("../../manifests", s.file)); err != nil {
			t.Error(err)
		}
	}
}
