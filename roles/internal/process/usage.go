package process

import (
	"errors"
	"fmt"
)

// ErrUsage is wrapped by errors about the command line or an environment
// variable, which nothing but another command line or environment can mend.
var ErrUsage = errors.New("usage")

// usageError carries ErrUsage without putting the word into the sentence.
type usageError struct{ err error }

func (e usageError) Error() string   { return e.err.Error() }
func (e usageError) Unwrap() []error { return []error{e.err, ErrUsage} }

// Usagef makes an error that wraps ErrUsage, formatted as by fmt.Errorf.
func Usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}
