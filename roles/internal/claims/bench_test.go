package claims

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// onDisk is an engine whose checkpoints are on the disk that temporary files are
// on, and whose CDI specs are in memory, as they are on a node.
func onDisk(b *testing.B) *bench {
	e := open(b, newNode(fastDir(b)), func(c *Config) { c.Dir = b.TempDir() })
	e.files = e.dir // without the hook
	return e
}

// BenchmarkFsync is what two fsyncs cost here, to compare the others with.
func BenchmarkFsync(b *testing.B) {
	d, err := openDirectory(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	r := &Record{Ref: Ref{"uid", "n", "c"}, State: StatePrepared}
	for b.Loop() {
		if err := d.stage(r); err != nil {
			b.Fatal(err)
		}
		if err := d.publish("uid"); err != nil {
			b.Fatal(err)
		}
		if err := d.sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPrepareUnprepare is one claim after the other.
func BenchmarkPrepareUnprepare(b *testing.B) {
	for _, steps := range [][]string{{"edit"}, {"act", "edit"}} {
		b.Run(fmt.Sprint(len(steps)-1, "-active"), func(b *testing.B) {
			e := onDisk(b)
			c := claim("job", gpu("gpu-0", steps...))
			for b.Loop() {
				mustPrepare(b, e, c)
				mustUnprepare(b, e, c)
			}
		})
	}
}

// BenchmarkConcurrent is eight claims at a time, among fifty others that are
// prepared, as in a burst of pods on a large node.
func BenchmarkConcurrent(b *testing.B) {
	for _, steps := range [][]string{{"edit"}, {"act", "edit"}} {
		b.Run(fmt.Sprint(len(steps)-1, "-active"), func(b *testing.B) {
			e := onDisk(b)
			for i := range 50 {
				mustPrepare(b, e, claim(fmt.Sprint("other-", i), gpu(fmt.Sprint("other-", i), "edit")))
			}
			b.ResetTimer()
			var next atomic.Int64
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						name := fmt.Sprint("gpu-", i)
						c := claim(name, gpu(name, steps...))
						if _, err := e.Prepare(b.Context(), c); err != nil {
							b.Error(err)
						}
						if err := e.Unprepare(b.Context(), RefOf(c)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			group.Wait()
		})
	}
}
