// Command judge says whether CDI spec files are what the CDI project says they
// must be. It asks two witnesses that the product itself does not use: the
// project's JSON schema, and the library in the last version that carried the
// schema, which is about as old as the oldest container runtime in use.
//
// It is a module of its own because the product needs the newest version of
// the same library. The tests of package cdi build it and run it on the files
// in testdata/golden/cdi and testdata/bad/cdi:
//
//	judge file.yaml…
//
// It prints a line for each file that is refused, and exits 1 if any is.
package main

import (
	"errors"
	"fmt"
	"os"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/schema"
)

func main() {
	refused := false
	for _, path := range os.Args[1:] {
		if err := judge(path); err != nil {
			fmt.Printf("%s: %v\n", path, err)
			refused = true
		}
	}
	if refused {
		os.Exit(1)
	}
}

// judge asks both witnesses about one file.
func judge(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var problems []error
	if err := schema.BuiltinSchema().ValidateData(data); err != nil {
		problems = append(problems, fmt.Errorf("schema: %w", err))
	}
	if _, err := cdi.ReadSpec(path, 0); err != nil {
		problems = append(problems, fmt.Errorf("old library: %w", err))
	}
	return errors.Join(problems...)
}
