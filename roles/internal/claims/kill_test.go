package claims

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// What a child process is told in its environment.
const (
	childRoot = "CLAIMS_TEST_ROOT" // directory of the node
	childCall = "CLAIMS_TEST_CALL" // prepare or unprepare
	childStop = "CLAIMS_TEST_STOP" // number of the operation to stop at
)

func TestMain(m *testing.M) {
	if root := os.Getenv(childRoot); root != "" {
		child(root, os.Getenv(childCall), os.Getenv(childStop))
	}
	os.Exit(m.Run())
}

// killed is the claim that the children work on.
func killed() *resourceapi.ResourceClaim {
	return claim("job", gpu("gpu-0", "check", "act=1", "edit", "keep=2", "act:second=3"))
}

// child makes one call and stops for ever at one of the operations in it, or
// after the call. It says on standard output that it has got there.
func child(root, call, stop string) {
	n := newNode(root)
	tb := &childTB{}
	b := open(tb, n)
	at, err := strconv.Atoi(stop)
	if err != nil {
		panic(err)
	}
	ops := 0
	n.setHook(func(_ context.Context, op string) error {
		if ops++; ops == at {
			fmt.Println("at", op)
			select {}
		}
		return nil
	})
	if call == "prepare" {
		_, err = b.Prepare(context.Background(), killed())
	} else {
		err = b.Unprepare(context.Background(), RefOf(killed()))
	}
	fmt.Println("done", err)
	select {}
}

// childTB is what open needs of a test, in a process that is none.
type childTB struct{ testing.TB }

func (*childTB) Helper()           {}
func (*childTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// runAndKill runs a child until it stops, kills it, and says where it was.
func runAndKill(t *testing.T, root, call string, stop int) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRoot+"="+root, childCall+"="+call, childStop+"="+strconv.Itoa(stop), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// A goroutine that waits for ever is no deadlock while a signal could come.
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed: an error is what is expected
	if readErr != nil {
		t.Fatalf("child said %q: %v", line, readErr)
	}
	return strings.TrimSpace(line)
}

// known checks that everything on the node can be undone from the records.
func known(t *testing.T, b *bench) {
	t.Helper()
	begun := map[string]bool{}
	for _, r := range b.Records() {
		for _, s := range r.Steps {
			begun[s.Kind+" "+s.Key] = s.Begun
		}
	}
	for _, thing := range b.node.things() {
		if !begun[thing] {
			t.Errorf("%s is on the node, and no record knows", thing)
		}
	}
}

// R009, R021: the process is killed at every boundary of a prepare. What it did
// is known, the next process completes or undoes it without anybody cleaning up,
// and when prepare has answered, record and spec are complete.
func TestKillDuringPrepare(t *testing.T) {
	for stop := 1; ; stop++ {
		root := fastDir(t)
		where := runAndKill(t, root, "prepare", stop)
		b := open(t, newNode(root))
		known(t, b)
		if err := b.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		known(t, b)
		done := strings.HasPrefix(where, "done")
		if done {
			if where != "done <nil>" {
				t.Fatal(where)
			}
			if r := b.record(killed().UID); r == nil || r.State != StatePrepared || !b.specFits(r) {
				t.Errorf("prepare answered, but the record is %+v", r)
			}
		}
		if stop%2 == 0 || done {
			mustPrepare(t, b, killed())
			if things := b.node.things(); len(things) != 3 {
				t.Errorf("killed %s: prepared again with %q", where, things)
			}
		}
		mustUnprepare(t, b, killed())
		mustBeEmpty(t, b)
		if t.Failed() {
			t.Fatalf("killed %s", where)
		}
		if done {
			if stop < 20 {
				t.Errorf("there were only %d boundaries", stop)
			}
			return
		}
	}
}

// The same for unprepare.
func TestKillDuringUnprepare(t *testing.T) {
	for stop := 1; ; stop++ {
		root := fastDir(t)
		mustPrepare(t, open(t, newNode(root)), killed())
		where := runAndKill(t, root, "unprepare", stop)
		b := open(t, newNode(root))
		known(t, b)
		if err := b.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		known(t, b)
		if s := b.state(killed().UID); !slices.Contains([]State{StatePrepared, StateAbsent}, s) {
			t.Errorf("after a restart the claim is %s", s)
		}
		if stop%2 == 0 {
			mustPrepare(t, b, killed())
		}
		mustUnprepare(t, b, killed())
		mustBeEmpty(t, b)
		if t.Failed() {
			t.Fatalf("killed %s", where)
		}
		if where == "done <nil>" {
			return
		}
	}
}
