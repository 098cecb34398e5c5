package claims

import (
	"fmt"
	"slices"
	"strings"
)

// A State is where a claim is in its life on this node.
type State string

// The states of a claim. All but StateAbsent are found in checkpoints.
const (
	// StateAbsent: nothing is known of the claim, and nothing is left of it.
	StateAbsent State = "Absent"
	// StatePreparing: steps may have begun. Kubelet has not been told of success.
	StatePreparing State = "Preparing"
	// StatePrepared: every step is done and the CDI spec is written.
	StatePrepared State = "Prepared"
	// StateUnpreparing: steps of a prepared claim are being undone.
	StateUnpreparing State = "Unpreparing"
	// StateAborting: steps of a claim that was never prepared are being undone.
	StateAborting State = "Aborting"
	// StateAborted: nothing is left but a tombstone, which refuses a prepare
	// call that was on its way when the claim was unprepared.
	StateAborted State = "Aborted"
)

// An Event is what moves a claim from one state to another.
type Event string

// The events.
const (
	PrepareCalled   Event = "PrepareCalled"   // kubelet wants the claim
	StepsDone       Event = "StepsDone"       // all steps are done, the CDI spec is written
	UnprepareCalled Event = "UnprepareCalled" // kubelet is done with the claim
	ClaimGone       Event = "ClaimGone"       // the API server has no such claim, or nobody uses it
	UndoDone        Event = "UndoDone"        // everything that had begun is undone
	NodeRebooted    Event = "NodeRebooted"    // the node restarted; what survives that is undone
	Reallocated     Event = "Reallocated"     // a newer version of the claim is to be prepared
	TombstoneOld    Event = "TombstoneOld"    // no late call is to be feared any more
)

// states and events are in the order in which the README shows them.
var (
	states = []State{StateAbsent, StatePreparing, StatePrepared, StateUnpreparing, StateAborting, StateAborted}
	events = []Event{PrepareCalled, StepsDone, UnprepareCalled, ClaimGone, UndoDone, NodeRebooted, Reallocated, TombstoneOld}
)

// transitions is the whole life of a claim. A pair that is not listed is refused.
var transitions = map[State]map[Event]State{
	StateAbsent: {
		PrepareCalled:   StatePreparing,
		UnprepareCalled: StateAbsent,
	},
	StatePreparing: {
		PrepareCalled:   StatePreparing,
		StepsDone:       StatePrepared,
		UnprepareCalled: StateAborting,
		ClaimGone:       StateAborting,
		NodeRebooted:    StateAbsent,
	},
	StatePrepared: {
		PrepareCalled:   StatePrepared,
		UnprepareCalled: StateUnpreparing,
		ClaimGone:       StateUnpreparing,
		NodeRebooted:    StateAbsent,
	},
	StateUnpreparing: {
		UnprepareCalled: StateUnpreparing,
		ClaimGone:       StateUnpreparing,
		UndoDone:        StateAbsent,
		NodeRebooted:    StateAbsent,
	},
	StateAborting: {
		UnprepareCalled: StateAborting,
		ClaimGone:       StateAborting,
		UndoDone:        StateAborted,
		NodeRebooted:    StateAbsent,
	},
	StateAborted: {
		UnprepareCalled: StateAborted,
		Reallocated:     StatePreparing,
		TombstoneOld:    StateAbsent,
		NodeRebooted:    StateAbsent,
	},
}

// Next says where an event leads. It refuses what cannot happen.
func Next(s State, e Event) (State, error) {
	next, ok := transitions[s][e]
	if !ok {
		return s, fmt.Errorf("%s in state %s: %w", e, s, ErrRefused)
	}
	return next, nil
}

// live reports whether a claim in this state may have anything on the node.
func (s State) live() bool { return s != StateAbsent && s != StateAborted }

// recorded reports whether s may stand in a checkpoint.
func (s State) recorded() bool { return s != StateAbsent && slices.Contains(states, s) }

// diagram draws the transitions for the README.
func diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    [*] --> Absent\n")
	for _, from := range states {
		for _, to := range states {
			var why []string
			for _, e := range events {
				if next, ok := transitions[from][e]; ok && next == to {
					why = append(why, string(e))
				}
			}
			if why != nil {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", from, to, strings.Join(why, ", "))
			}
		}
	}
	return b.String()
}
