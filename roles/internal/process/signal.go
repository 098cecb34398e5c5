package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"go.uber.org/zap"
)

// stackDumpPath is where SIGUSR2 puts the stacks of all goroutines. The place
// is a promise to those who look after a node.
const stackDumpPath = "/tmp/goroutine-stacks.dump"

// stopSignals end the process gracefully.
var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// withSignals returns a context that the first signal to stop cancels. From
// then on signals have their usual effect, so that a second one ends the
// process at once. SIGUSR2 dumps all stacks, at any time. Call the function it
// returns when the process no longer wants to be told.
func withSignals(ctx context.Context, log *zap.Logger, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := make(chan os.Signal, 1)
	dump := make(chan os.Signal, 1)
	quit := make(chan struct{})
	over := make(chan struct{})
	signal.Notify(stop, stopSignals...)
	signal.Notify(dump, syscall.SIGUSR2)
	go func() {
		defer close(over)
		for {
			select {
			case s := <-stop:
				signal.Stop(stop)
				log.Info("stop", zap.String("signal", s.String()))
				cancel()
			case <-dump:
				where, err := dumpStacks(stackDumpPath, stderr)
				log.Info("dump stacks", zap.String("to", where), zap.Error(err))
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(stop)
		signal.Stop(dump)
		close(quit)
		<-over
		cancel()
	}
}

// dumpStacks writes the stacks of all goroutines to the file path, or to
// fallback if that cannot be, and says which. The error is why not the file.
func dumpStacks(path string, fallback io.Writer) (where string, err error) {
	stacks := allStacks()
	if err := writeDump(path, stacks); err != nil {
		if _, err2 := fallback.Write(stacks); err2 != nil {
			return "nowhere", fmt.Errorf("%w; write stacks to stderr: %w", err, err2)
		}
		return "stderr", err
	}
	return path, nil
}

// writeDump does not follow a symbolic link: the directory is one that anybody
// may write to.
func writeDump(path string, stacks []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write stacks: %w", err)
	}
	if _, err = f.Write(stacks); err != nil {
		err = fmt.Errorf("write stacks: %w", err)
	}
	if err2 := f.Close(); err == nil && err2 != nil {
		err = fmt.Errorf("write stacks: %w", err2)
	}
	return err
}

// allStacks asks with a larger buffer until everything has found room.
func allStacks() []byte {
	for size := 1 << 20; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= 1<<28 {
			return buf[:n]
		}
	}
}
