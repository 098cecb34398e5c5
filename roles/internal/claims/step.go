package claims

import (
	"context"
	"encoding/json"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// A Step is one reversible change to the node, or one thing given to the
// claim. The checkpoint says that it has begun before it runs, and it is undone
// from the checkpoint alone.
//
// Steps with the same Kind and Key change the same thing. Claims may share
// one if they Want the same; it is undone with the last of them.
type Step struct {
	Kind string `json:"kind"` // which handler knows it
	Key  string `json:"key"`  // what it changes, e.g. "GPU-0a1"
	// Device is the name of the planned device the step belongs to. A step
	// without one belongs to the whole claim.
	Device string `json:"device,omitempty"`
	// Want is what was asked for, Result what it turned into. Result is set
	// when Do is over; a handler that returns nothing leaves "null" there.
	Want   json.RawMessage `json:"want,omitempty"`
	Begun  bool            `json:"begun,omitempty"` // Do may have had an effect
	Result json.RawMessage `json:"result,omitempty"`
}

// A Handler knows one kind of Step. The engine calls it for one claim at a
// time, for one key at a time, and for any number of claims at once. A panic
// in it ends the work on that claim with an error.
//
// A handler may in addition be an [Editor], a [Passive] or a [Survivor].
type Handler interface {
	// Do carries s out and returns what Undo and Edits will need besides
	// s.Want, as JSON.
	//
	// It may be called again for a step it has begun or even completed: after
	// an error, after a crash, or because two claims share the step. It then
	// completes what is missing and succeeds. It returns soon after ctx ends;
	// ctx ends when kubelet gives up or the claim is unprepared.
	//
	// An error leaves the step begun. Later either Do is called again, or Undo.
	Do(ctx context.Context, s Step) (result json.RawMessage, err error)

	// Undo reverses s. It is called in reverse order of Do: perhaps by a newer
	// binary, perhaps though Do never finished, and again until it returns nil.
	// It may look only at s and at the node; the claim, the pod and the gates
	// that led to s may be gone. Finding nothing to undo is success.
	Undo(ctx context.Context, s Step) error
}

// An Editor is a Handler whose step changes what the container sees.
type Editor interface {
	Handler

	// Edits returns the container edits of a step that was done. It looks up
	// the device by the identity that s recorded, because numbers that were
	// right when s was done may by now belong to another device. It is called
	// whenever the CDI spec is written or checked, and changes nothing.
	//
	// An error that wraps [ErrPermanent] says that the thing is gone. The CDI
	// spec is then taken away, so that no container gets what has its numbers
	// now.
	Edits(ctx context.Context, s Step) (*cdispec.ContainerEdits, error)
}

// Passive is for a Handler whose Do changes nothing on the node: it checks
// something, or only has Edits. Passive steps have nothing to undo, so nothing
// is written before they run, and they are the only ones that a device with
// admin access may have.
type Passive interface {
	Passive() bool
}

// Survivor is for a Handler whose steps can outlive a reboot of the node. All
// others are forgotten after a reboot, not undone.
type Survivor interface {
	SurvivesReboot(s Step) bool
}

// done reports whether Do is over.
func (s Step) done() bool { return s.Result != nil }

// same reports whether two steps change the same thing.
func (s Step) same(o Step) bool { return s.Kind == o.Kind && s.Key == o.Key }
