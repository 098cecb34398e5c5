package v1beta1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// DecodeConfig reads a configuration that a user wrote. A field that does not
// exist or is written twice is an error, with its path. The configuration is
// as written: not normalized, not validated.
func DecodeConfig(raw []byte) (Config, error) {
	return decode(raw, true)
}

// DecodeStored reads a configuration that the driver stored itself, perhaps
// in a newer release: unlike [DecodeConfig] it ignores fields it does not
// know, so that a downgraded driver can still undo what its successor did.
func DecodeStored(raw []byte) (Config, error) {
	return decode(raw, false)
}

func decode(raw []byte, strict bool) (Config, error) {
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, fmt.Errorf("decode configuration: it is not an object: write one with apiVersion %s and kind %s", APIVersion, kindList())
	}
	var head metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &head); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", readable(err))
	}
	cfg, err := empty(head)
	if err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	mistakes, err := kjson.UnmarshalStrict(raw, cfg)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", head.Kind, readable(err))
	}
	if strict && len(mistakes) > 0 {
		return nil, fmt.Errorf("decode %s: %w", head.Kind, runtime.NewStrictDecodingError(mistakes))
	}
	return cfg, nil
}

// empty is a configuration of the kind that head names.
func empty(head metav1.TypeMeta) (Config, error) {
	if head.APIVersion == "" || head.Kind == "" {
		return nil, fmt.Errorf("apiVersion or kind is missing: write apiVersion %s and kind %s", APIVersion, kindList())
	}
	if head.APIVersion != APIVersion {
		return nil, fmt.Errorf("apiVersion %q is not known here: use %s with kind %s", shorten(head.APIVersion), APIVersion, kindList())
	}
	for _, k := range kinds {
		if k.name == head.Kind {
			return k.empty(), nil
		}
	}
	return nil, fmt.Errorf("kind %q is not a configuration of this driver: use %s", shorten(head.Kind), kindList())
}

// readable turns Go's words for a value of the wrong type into ours.
func readable(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	where := wrong.Field
	if where == "" {
		where = "the configuration"
	}
	got := map[string]string{
		"string": "a string", "number": "a number", "bool": "true or false", "array": "a list", "object": "an object",
	}[wrong.Value]
	if got == "" { // "number 1.5", where the number itself is what is wrong
		got = "the " + shorten(wrong.Value)
	}
	want := "an object"
	switch wrong.Type.Kind() {
	case reflect.Int:
		want = "a whole number"
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a string"
	}
	return fmt.Errorf("%s: is %s, but must be %s", where, got, want)
}
