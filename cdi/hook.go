package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// HookName is the file name of the hook program. nvcdi and other readers of
// CDI specs take a hook of this name for NVIDIA's.
const HookName = "nvidia-cdi-hook"

// abandonedAfter is when a temporary copy can have no writer any more.
const abandonedAfter = 10 * time.Minute

// InstallHook copies the hook program src to the file dst, where the container
// runtime on the host can start it. The file should be called [HookName].
//
// A runtime may be executing the program at this moment, and it may start it
// at any other. So it is not written over but replaced as a whole, and not at
// all if it is the same already.
func InstallHook(src, dst string) error {
	if err := installHook(src, dst); err != nil {
		return fmt.Errorf("install hook program %s: %w", dst, err)
	}
	return nil
}

func installHook(src, dst string) (err error) {
	program, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(program, []byte("\x7fELF")) {
		return fmt.Errorf("%s: %w: it is not a program", src, ErrInvalid)
	}
	if same, err := isInstalled(dst, program); same || err != nil {
		return err
	}
	dir := filepath.Dir(dst)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := removeAbandoned(dst); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, "."+filepath.Base(dst)+".*"+tempSuffix)
	if err != nil {
		return err
	}
	renamed := false
	defer func() {
		if !renamed {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	if err := fill(temp, program, 0o755); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), dst); err != nil {
		return err
	}
	renamed = true
	return syncDir(dir)
}

// isInstalled reports whether dst is this program already, and may be executed.
func isInstalled(dst string, program []byte) (bool, error) {
	info, err := os.Lstat(dst)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 || info.Size() != int64(len(program)) {
		return false, nil
	}
	installed, err := os.ReadFile(dst)
	return bytes.Equal(installed, program), err
}

// removeAbandoned removes the temporary copies of installers that were killed.
func removeAbandoned(dst string) error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".*"+tempSuffix))
	if err != nil {
		return err
	}
	for _, path := range left {
		info, err := os.Lstat(path)
		if err == nil && time.Since(info.ModTime()) > abandonedAfter {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
