package claims

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ref names a claim. The UID identifies it; namespace and name are for people
// and for looking it up.
type Ref struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
}

// RefOf returns the name of a claim.
func RefOf(claim *resourceapi.ResourceClaim) Ref {
	return Ref{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name}
}

// String returns namespace/name (uid), or the UID if there is no name.
func (r Ref) String() string {
	if r.Name == "" {
		return string(r.UID)
	}
	return fmt.Sprintf("%s/%s (%s)", r.Namespace, r.Name, r.UID)
}

// maxUID is far above the 36 characters of a UUID and keeps every file name
// made of a UID below the 255 bytes a file system allows.
const maxUID = 100

// checkUID refuses everything that could be more than one element of a path.
// A UID becomes a file name only after this.
func checkUID(uid types.UID) error {
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	}
	s := string(uid)
	if s == "" || len(s) > maxUID || s[0] == '-' || strings.ContainsFunc(s, bad) {
		return fmt.Errorf("claim UID %.120q: %w: want letters, digits and dashes, as in a UUID", s, ErrPermanent)
	}
	return nil
}
