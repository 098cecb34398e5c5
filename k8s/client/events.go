package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
)

// Limits of Events. An Event is help for people and must never cost more than
// it helps.
const (
	eventQueue    = 256              // waiting to be written; more are dropped
	eventQPS      = 1                // written per second, in the long run
	eventBurst    = 25               // written at once
	seriesWindow  = 6 * time.Minute  // the same again within it is counted, not written anew
	seriesRefresh = 30 * time.Second // the count is written at most this often
	eventTimeout  = 10 * time.Second // for one write
	eventTries    = 3                // to write one
	eventPause    = 2 * time.Second  // between them
	eventFlush    = 3 * time.Second  // for what is queued when Run ends
	maxSeries     = 1024             // remembered at once
)

// Events writes Events (events.k8s.io/v1) about objects. Reporting returns at
// once: what is reported is written by Run, at a limited rate, and the same
// again is only counted. What exceeds the limits is dropped and counted.
type Events struct {
	kube       kubernetes.Interface
	controller string
	instance   string
	onError    func(error)

	queue   chan *eventsv1.Event
	limiter flowcontrol.PassiveRateLimiter
	dropped atomic.Uint64

	mu     sync.Mutex
	series map[eventKey]*series
}

// eventKey is what two Events have in common that tell the same.
type eventKey struct {
	regarding                 types.UID
	kind, namespace, name     string
	eventType, reason, action string
	note                      string
}

// series is an Event that has been written, or is about to be.
type series struct {
	event   *eventsv1.Event
	count   int32 // times observed
	written int32 // times observed when last written
	last    time.Time
}

// NewEvents makes an Events whose Run has yet to be started. controller is who
// reports, such as a driver name; instance is which of them, such as a node
// name. onError is told about Events that could not be written.
func NewEvents(kube kubernetes.Interface, controller, instance string, onError func(error)) *Events {
	return &Events{
		kube:       kube,
		controller: controller,
		instance:   truncate(instance, 128),
		onError:    onError,
		queue:      make(chan *eventsv1.Event, eventQueue),
		limiter:    flowcontrol.NewTokenBucketPassiveRateLimiter(eventQPS, eventBurst),
		series:     map[eventKey]*series{},
	}
}

// Normal reports something that went as it should.
func (e *Events) Normal(regarding corev1.ObjectReference, reason, action, note string) {
	e.report(regarding, corev1.EventTypeNormal, reason, action, note)
}

// Warning reports something that somebody may have to look at. reason and
// action are words in camel case: why, and what we were doing.
func (e *Events) Warning(regarding corev1.ObjectReference, reason, action, note string) {
	e.report(regarding, corev1.EventTypeWarning, reason, action, note)
}

// Dropped is the number of Events that exceeded a limit or could not be written.
func (e *Events) Dropped() uint64 { return e.dropped.Load() }

func (e *Events) report(regarding corev1.ObjectReference, eventType, reason, action, note string) {
	now := time.Now()
	note = truncate(note, 1024) // the API server refuses more
	key := eventKey{regarding.UID, regarding.Kind, regarding.Namespace, regarding.Name, eventType, reason, action, note}

	e.mu.Lock()
	defer e.mu.Unlock()
	if s, ok := e.series[key]; ok && now.Sub(s.last) < seriesWindow {
		s.count++
		s.last = now
		return
	}
	if len(e.series) >= maxSeries || !e.limiter.TryAccept() {
		e.dropped.Add(1)
		return
	}
	event := e.newEvent(regarding, eventType, reason, action, note, now)
	select {
	case e.queue <- event:
		e.series[key] = &series{event: event, count: 1, written: 1, last: now}
	default:
		e.dropped.Add(1)
	}
}

func (e *Events) newEvent(regarding corev1.ObjectReference, eventType, reason, action, note string, now time.Time) *eventsv1.Event {
	namespace := regarding.Namespace
	if namespace == "" { // where Events about objects outside namespaces have to be
		namespace = metav1.NamespaceDefault
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      eventName(regarding.Name),
			Namespace: namespace,
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: e.controller,
		ReportingInstance:   e.instance,
		Type:                eventType,
		Reason:              truncate(reason, 128),
		Action:              truncate(action, 128),
		Note:                note,
		Regarding:           regarding,
	}
}

// eventName makes a name that no other Event has and that shows what it is
// about. It has to be a DNS name.
func eventName(about string) string {
	about = strings.TrimRight(truncate(about, 200), ".-")
	if about == "" {
		about = "unnamed"
	}
	return about + "." + strings.ToLower(rand.Text())
}

// Run writes what has been reported until ctx is done, and then, for a short
// time, what is still queued.
func (e *Events) Run(ctx context.Context) error {
	tick := time.NewTicker(seriesRefresh)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case event := <-e.queue:
			e.create(ctx, event)
		case <-tick.C:
			e.drain(ctx) // an Event has to exist before its count can grow
			e.refresh(ctx, time.Now())
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventFlush)
	defer cancel()
	e.drain(last)
	e.refresh(last, time.Now())
	return nil
}

// drain writes what is queued at this moment.
func (e *Events) drain(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case event := <-e.queue:
			e.create(ctx, event)
		default:
			return
		}
	}
}

// create writes one Event. An API server that restarts gets a second and a
// third chance; one that refuses does not. When ctx ends in the middle, the
// Event goes back to the queue for the flush at the end of Run.
func (e *Events) create(ctx context.Context, event *eventsv1.Event) {
	var err error
	for range eventTries {
		write, cancel := context.WithTimeout(ctx, eventTimeout)
		_, err = e.kube.EventsV1().Events(event.Namespace).Create(write, event, metav1.CreateOptions{})
		cancel()
		if err == nil || apierrors.IsAlreadyExists(err) { // it exists when only the answer to an earlier try was lost
			return
		}
		if refused(err) {
			break
		}
		select {
		case <-time.After(eventPause):
			continue
		case <-ctx.Done():
		}
		select {
		case e.queue <- event:
			return
		default:
		}
		break
	}
	e.dropped.Add(1)
	e.onError(fmt.Errorf("write event %s about %s %s/%s: %w", event.Reason, event.Regarding.Kind, event.Regarding.Namespace, event.Regarding.Name, err))
}

// refused tells an answer that will stay the same from one that may not, or
// from none at all.
func refused(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown &&
		!apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsServerTimeout(err) &&
		!apierrors.IsTimeout(err) && !apierrors.IsInternalError(err)
}

// refresh writes the counts that have grown and forgets what is over.
func (e *Events) refresh(ctx context.Context, now time.Time) {
	type update struct {
		event *eventsv1.Event
		patch string
	}
	var updates []update
	e.mu.Lock()
	for key, s := range e.series {
		if s.count > s.written {
			s.written = s.count
			updates = append(updates, update{s.event, fmt.Sprintf(`{"series":{"count":%d,"lastObservedTime":%q}}`, s.count, s.last.UTC().Format(metav1.RFC3339Micro))})
		} else if now.Sub(s.last) >= seriesWindow {
			delete(e.series, key)
		}
	}
	e.mu.Unlock()

	for _, u := range updates {
		write, cancel := context.WithTimeout(ctx, eventTimeout)
		_, err := e.kube.EventsV1().Events(u.event.Namespace).Patch(write, u.event.Name, types.MergePatchType, []byte(u.patch), metav1.PatchOptions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) { // Events expire; a count of one that is gone helps nobody
			e.onError(fmt.Errorf("count event %s about %s %s/%s: %w", u.event.Reason, u.event.Regarding.Kind, u.event.Regarding.Namespace, u.event.Regarding.Name, err))
		}
	}
}

// truncate cuts s to at most n bytes without breaking a character.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// ClaimReference names a ResourceClaim for an Event.
func ClaimReference(claim *resourceapi.ResourceClaim) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
}

// NodeReference names a Node for an Event. Like kubelet's, it has the node's
// name for a UID: that is what `kubectl describe node` looks for.
func NodeReference(name string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}
}
