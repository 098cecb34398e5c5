package process

import (
	"os"
	"testing"
)

// unset takes an environment variable away for the time of a test.
func unset(t *testing.T, name string) {
	t.Setenv(name, "") // so that it comes back
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}
