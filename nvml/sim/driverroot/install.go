package driverroot

import (
	"fmt"
	"path/filepath"
)

// LibraryDir is where the driver's libraries are below the root.
const LibraryDir = "usr/lib/x86_64-linux-gnu"

// A Library is one of the driver's shared objects: the file <Name>.<version>,
// and the links to it.
type Library struct {
	Name   string // "libcuda.so"
	SOName string // "libcuda.so.1"; "" when the version is the name
	// Bare says that there is a link without any version, too.
	Bare bool
}

// Libraries are the libraries a driver for compute work installs. Only NVML does
// anything; the others are there to be found and mounted.
var Libraries = []Library{
	{"libnvidia-ml.so", "libnvidia-ml.so.1", true},
	{"libcuda.so", "libcuda.so.1", true},
	{"libcudadebugger.so", "libcudadebugger.so.1", false},
	{"libnvcuvid.so", "libnvcuvid.so.1", true},
	{"libnvidia-allocator.so", "libnvidia-allocator.so.1", false},
	{"libnvidia-cfg.so", "libnvidia-cfg.so.1", false},
	{"libnvidia-encode.so", "libnvidia-encode.so.1", false},
	{"libnvidia-gpucomp.so", "", false},
	{"libnvidia-nvvm.so", "libnvidia-nvvm.so.4", true},
	{"libnvidia-opencl.so", "libnvidia-opencl.so.1", false},
	{"libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1", false},
	{"libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1", true},
}

// Programs are the driver's programs. All are one stand-in, which looks at the
// name it is called by.
var Programs = []string{
	"nvidia-smi", "nvidia-persistenced", "nvidia-debugdump", "nvidia-cuda-mps-control",
	"nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl",
}

// StandIn is the file of the stand-in program among the built files.
const StandIn = "bin/stand-in"

// install adds libraries, programs and firmware of one driver version.
func (r *Root) install(t tree, version string) error {
	for _, l := range Libraries {
		file := l.Name + "." + version
		t[LibraryDir+"/"+file] = entry{kind: copyEntry, text: filepath.Join(r.files, "lib", l.Name), mode: 0o755}
		if l.SOName != "" {
			t.link(LibraryDir+"/"+l.SOName, file)
		}
		if l.Bare {
			t.link(LibraryDir+"/"+l.Name, l.SOName)
		}
	}
	for _, p := range Programs {
		t["usr/bin/"+p] = entry{kind: copyEntry, text: filepath.Join(r.files, StandIn), mode: 0o755}
	}
	for _, gsp := range []string{"gsp_ga10x.bin", "gsp_tu10x.bin"} {
		t.file(fmt.Sprintf("lib/firmware/nvidia/%s/%s", version, gsp), "no firmware: simulated driver\n")
	}
	return nil
}
