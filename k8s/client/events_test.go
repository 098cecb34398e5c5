package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var regarding = corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: "train", Name: "job-7", UID: "u-7"}

// start runs an Events on a fake API server; stop ends its Run and waits.
func start(t *testing.T, kube *fake.Clientset) (e *Events, errs *[]error, stop func()) {
	errs = new([]error)
	e = NewEvents(kube, "gpu.nvidia.com", "node-a", func(err error) { *errs = append(*errs, err) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	return e, errs, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func written(t *testing.T, kube *fake.Clientset) []eventsv1.Event {
	list, err := kube.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestEventIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		e, errs, stop := start(t, kube)
		e.Warning(regarding, "PrepareFailed", "Prepare", "GPU-0 is lost: "+strings.Repeat("é", 1000))
		e.Normal(NodeReference("node-a"), "DriverFound", "Discover", "8 GPUs")
		synctest.Wait()
		list := written(t, kube)
		if len(list) != 2 || len(*errs) > 0 {
			t.Fatalf("%d events, errors %v", len(list), *errs)
		}
		for _, event := range list {
			if event.ReportingController != "gpu.nvidia.com" || event.ReportingInstance != "node-a" || event.EventTime.IsZero() || event.Action == "" || len(event.Note) > 1024 {
				t.Errorf("%+v", event)
			}
			if strings.ContainsRune(event.Note, '\uFFFD') {
				t.Error("a character was cut in two")
			}
		}
		if list[0].Namespace == list[1].Namespace {
			t.Error("the node's event should be in namespace default, the claim's in its own")
		}
		stop()
	})
}

func TestTheSameAgainIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		e, _, stop := start(t, kube)
		for range 7 {
			e.Warning(regarding, "PrepareFailed", "Prepare", "not yet")
			time.Sleep(time.Second)
		}
		time.Sleep(seriesRefresh)
		list := written(t, kube)
		if len(list) != 1 || list[0].Series == nil || list[0].Series.Count != 7 {
			t.Fatalf("%+v", list)
		}
		e.Warning(regarding, "PrepareFailed", "Prepare", "not yet")
		stop() // also writes the last count
		if list := written(t, kube); list[0].Series.Count != 8 {
			t.Errorf("count %d", list[0].Series.Count)
		}
	})
}

func TestASeriesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		e, _, stop := start(t, kube)
		e.Warning(regarding, "A", "B", "c")
		time.Sleep(seriesWindow + 2*seriesRefresh)
		if len(e.series) != 0 {
			t.Error("a series that is over is still remembered")
		}
		e.Warning(regarding, "A", "B", "c")
		synctest.Wait()
		if n := len(written(t, kube)); n != 2 {
			t.Errorf("%d events", n)
		}
		stop()
	})
}

func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		e, _, stop := start(t, kube)
		for i := range 1000 {
			e.Warning(regarding, "Flood", "Prepare", fmt.Sprint(i))
		}
		synctest.Wait()
		if n := len(written(t, kube)); n != eventBurst || e.Dropped() != uint64(1000-eventBurst) {
			t.Errorf("%d events, %d dropped", n, e.Dropped())
		}
		stop()
	})
}

// TestReportingNeverWaits has an API server that does not answer.
func TestReportingNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		blocked := make(chan struct{})
		kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-blocked
			return true, &eventsv1.Event{}, nil
		})
		e, _, stop := start(t, kube)
		before := time.Now()
		for i := range 2000 {
			e.Warning(regarding, "Stuck", "Prepare", fmt.Sprint(i))
		}
		if waited := time.Since(before); waited > 0 {
			t.Errorf("reporting took %v", waited)
		}
		close(blocked)
		stop()
	})
}

func TestFlushAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		e := NewEvents(kube, "c", "i", func(err error) { t.Error(err) })
		for i := range 5 {
			e.Warning(regarding, "Late", "Stop", fmt.Sprint(i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // Run begins when all is over
		if err := e.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := len(written(t, kube)); n != 5 {
			t.Errorf("%d of 5 events", n)
		}
	})
}

func TestServerThatRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		failures := 2
		kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failures > 0 {
				failures--
				return true, nil, errors.New("connection refused")
			}
			return false, nil, nil
		})
		e, errs, stop := start(t, kube)
		e.Warning(regarding, "A", "B", "c")
		time.Sleep(time.Minute)
		if n := len(written(t, kube)); n != 1 || len(*errs) > 0 {
			t.Errorf("%d events, errors %v", n, *errs)
		}
		stop()
	})
}

func TestServerThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		calls := 0
		kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			calls++
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no"))
		})
		e, errs, stop := start(t, kube)
		e.Warning(regarding, "A", "B", "c")
		time.Sleep(time.Minute)
		stop()
		if calls != 1 || len(*errs) != 1 || e.Dropped() != 1 || !strings.Contains((*errs)[0].Error(), "write event A about ResourceClaim train/job-7: ") {
			t.Errorf("%d calls, errors %v", calls, *errs)
		}
	})
}

func TestEventNames(t *testing.T) {
	for _, about := range []string{"", "a", "node.example.com", strings.Repeat("x", 199) + "-" + "tail", strings.Repeat(".", 300)} {
		name := eventName(about)
		if len(name) > 253 || strings.Contains(name, "..") || strings.Contains(name, "-.") || strings.HasPrefix(name, ".") {
			t.Errorf("eventName(%q) = %q", about, name)
		}
	}
}

// TestSeriesPatch checks the patch against the type that the server decodes it
// into.
func TestSeriesPatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		e, _, stop := start(t, kube)
		e.Warning(regarding, "A", "B", "c")
		e.Warning(regarding, "A", "B", "c")
		time.Sleep(2 * seriesRefresh)
		stop()
		for _, action := range kube.Actions() {
			if patch, ok := action.(clienttesting.PatchAction); ok {
				var event eventsv1.Event
				if err := json.Unmarshal(patch.GetPatch(), &event); err != nil || event.Series.Count != 2 || event.Series.LastObservedTime.IsZero() {
					t.Errorf("%s: %v", patch.GetPatch(), err)
				}
				return
			}
		}
		t.Error("no patch")
	})
}
