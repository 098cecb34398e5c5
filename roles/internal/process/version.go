package process

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the linker:
//
//	-ldflags "-X nvdra/roles/internal/process.version=v1.2.3 -X nvdra/roles/internal/process.commit=abcdef0"
//
// Without it, they are what the Go toolchain has recorded.
var version, commit string

// A Build says which program this is.
type Build struct {
	Version string // of the release, or of the module; "devel" if neither is known
	Commit  string // of the sources; empty if not known
	Go      string // version of the Go toolchain
}

// ThisBuild describes the running program.
func ThisBuild() Build {
	b := Build{Version: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && b.Commit == "" {
				b.Commit = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

// String is what --version prints.
func (b Build) String() string {
	if b.Commit == "" {
		return fmt.Sprintf("nvdra %s (%s)", b.Version, b.Go)
	}
	return fmt.Sprintf("nvdra %s (commit %s, %s)", b.Version, b.Commit, b.Go)
}
