package claims

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// guard calls f and turns a panic into an error: what one claim provokes must
// not end the process, which serves all claims of the node.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v%s", ErrPanic, p, origin())
		}
	}()
	return f()
}

// origin says where the panic that is being recovered from began.
func origin() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	panicked := false
	for {
		f, more := frames.Next()
		inRuntime := strings.HasPrefix(f.Function, "runtime.")
		if panicked && !inRuntime {
			return fmt.Sprintf(" (%s:%d)", filepath.Base(f.File), f.Line)
		}
		panicked = panicked || f.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}
