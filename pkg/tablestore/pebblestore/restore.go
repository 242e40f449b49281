package pebblestore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// restoreName is the directory, in that of the store, into which a backup is unpacked. It
// is on the same file system, even if the store's directory is a mount.
const restoreName = "RESTORE"

// RestoreOptions configures [Unpack].
type RestoreOptions struct {
	// Dir is the directory of the new store. It must be missing or empty. Required.
	Dir string
	// FS is the file system that holds Dir. Optional. Defaults to the operating system's.
	FS vfs.FS
	// Progress is told how many bytes were unpacked, and how many there are. Optional.
	Progress func(done, total int64)
}

// Unpacked is a restore under way: a store that was unpacked and verified. Close it.
type Unpacked struct {
	Manifest *BackupManifest
	// Dir is where the store can be opened, read-only, until Commit moves it to its place.
	Dir string

	files vfs.FS
	place string
	lock  *pebble.Lock
	made  bool // The place was missing.
}

// Unpack unpacks and verifies a backup in a directory within options.Dir. It returns
// [ErrBackup] for a bad backup, [ErrLocked] if another process uses the directory, and an
// error that wraps [fs.ErrExist] if that is not empty. The remains of a restore that was
// interrupted are replaced.
func Unpack(r io.Reader, options RestoreOptions) (_ *Unpacked, err error) {
	if options.Dir == "" {
		return nil, errors.New("pebblestore: RestoreOptions.Dir is required")
	}
	options.FS = cmp.Or(options.FS, vfs.Default)
	u := &Unpacked{files: options.FS, place: options.Dir, Dir: options.FS.PathJoin(options.Dir, restoreName)}
	switch info, err := u.files.Stat(u.place); {
	case errors.Is(err, fs.ErrNotExist):
		u.made = true
	case err == nil && !info.IsDir():
		return nil, fmt.Errorf("data directory %q is not a directory: %w", u.place, fs.ErrExist)
	}
	if err := makeDir(u.files, u.place); err != nil {
		return nil, fmt.Errorf("data directory %q cannot be made: %w", u.place, err)
	}
	if u.lock, err = pebble.LockDirectory(u.place, u.files); err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrLocked, u.place, err)
	}
	if err := u.begin(); err != nil {
		return nil, errors.Join(err, u.lock.Close())
	}
	if err := u.unpack(r, options.Progress); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

// begin removes what an interrupted restore left, checks that the place is empty except for
// the lock and the directory that file systems have at their root, and notes the restore:
// until it is complete, a start is refused.
func (u *Unpacked) begin() error {
	names, err := u.files.List(u.place)
	if err != nil {
		return fmt.Errorf("data directory %q cannot be listed: %w", u.place, err)
	}
	state, _, err := readState(u.files, u.place)
	if err != nil {
		return err
	}
	for _, name := range names {
		own := state == stateRestoring && (name == restoreName || isStoreFile(name)) || name == stateName+newSuffix
		if !own && name != lockName && name != "lost+found" {
			return fmt.Errorf("data directory %q is not empty, it holds %s: restore into another, or move its content away: %w",
				u.place, name, fs.ErrExist)
		}
	}
	return cmp.Or(u.discard(), writeState(u.files, u.place, stateRestoring, nil))
}

// discard removes what was unpacked, unless the restore is complete. The state goes last.
func (u *Unpacked) discard() error {
	state, _, err := readState(u.files, u.place)
	if err != nil {
		return err
	}
	if state == stateRestoring {
		names, err := storeFiles(u.files, u.place)
		for _, name := range names {
			err = errors.Join(err, u.files.Remove(u.files.PathJoin(u.place, name)))
		}
		if err = errors.Join(err, removeCopy(u.files, u.Dir), syncDir(u.files, u.place)); err != nil {
			return err
		}
		return u.files.Remove(u.files.PathJoin(u.place, stateName))
	}
	return removeCopy(u.files, u.Dir)
}

func (u *Unpacked) unpack(r io.Reader, progress func(done, total int64)) (err error) {
	if err := u.files.MkdirAll(u.Dir, 0o700); err != nil {
		return err
	}
	if err := syncDir(u.files, u.place); err != nil {
		return err
	}
	u.Manifest, err = readBackup(r, progress, func(name string, content io.Reader) error {
		made, err := u.files.Create(u.files.PathJoin(u.Dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		_, err = io.Copy(made, content)
		return errors.Join(err, made.Sync(), made.Close())
	})
	return errors.Join(err, syncDir(u.files, u.Dir))
}

// Commit moves the store to its place, its state last: until then, a start is refused.
func (u *Unpacked) Commit() error {
	names, err := storeFiles(u.files, u.Dir)
	for i := 0; i < len(names) && err == nil; i++ {
		err = u.move(names[i])
	}
	if err = errors.Join(err, syncDir(u.files, u.place)); err != nil {
		return fmt.Errorf("data directory %q: %w", u.place, err)
	}
	u.made = false
	if err := errors.Join(u.move(stateName), syncDir(u.files, u.place)); err != nil {
		return fmt.Errorf("data directory %q: %w", u.place, err)
	}
	return nil
}

// move moves a file to its place.
func (u *Unpacked) move(name string) error {
	return u.files.Rename(u.files.PathJoin(u.Dir, name), u.files.PathJoin(u.place, name))
}

// Close removes what was unpacked, unless Commit has moved all of it, and releases the
// directory.
func (u *Unpacked) Close() error {
	err := errors.Join(u.discard(), u.lock.Close())
	if u.made { // The restore made it, and does not need it.
		_ = u.files.Remove(u.files.PathJoin(u.place, lockName)) // An error leaves an empty directory.
		_ = u.files.Remove(u.place)
	}
	return err
}
