package cdi

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// fill writes data to a new file, gives it its mode whatever the umask is,
// waits until it is on disk, and closes it.
func fill(file *os.File, data []byte, mode fs.FileMode) error {
	_, err := file.Write(data)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// syncDir waits until the names in a directory are on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// isReadOnly reports whether the file system refused to be written.
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
