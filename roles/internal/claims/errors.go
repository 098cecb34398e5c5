package claims

import "errors"

// The kinds of errors a caller may want to tell apart. A planner or a handler
// wraps the first two to say what it knows; the engine passes them on.
var (
	// ErrRetry says that the world is not ready yet: the same call may work
	// later.
	ErrRetry = errors.New("try again")

	// ErrPermanent says that the same call will not work however often it is
	// repeated: the user has to change something. From [Editor.Edits] it says
	// that what the step gave the claim is gone.
	ErrPermanent = errors.New("will not work")

	// ErrConflict says that another claim has the device, or has set it up in
	// another way. It is the last line of defence against giving a device to
	// two claims.
	ErrConflict = errors.New("device is in use")

	// ErrLocked says that a lock was not free in time. An error that wraps it
	// wraps ErrRetry too.
	ErrLocked = errors.New("held")

	// ErrPanic says that a planner or a handler panicked. The panic ended the
	// work on one claim and nothing else.
	ErrPanic = errors.New("panic")

	// ErrDamaged says that a checkpoint file does not hold what was written.
	ErrDamaged = errors.New("checkpoint is damaged")

	// ErrNewer says that a checkpoint file was written by a newer version.
	ErrNewer = errors.New("checkpoint was written by a newer version")

	// ErrRefused says that an event cannot happen in a state.
	ErrRefused = errors.New("not possible now")
)
