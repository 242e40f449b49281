package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Prefixes of the two marker files that the engine makes before a new store
// takes its first write; the content of each is the rest of its name. If the
// first is missing, the engine treats the directory as empty and deletes the
// tables and logs in it.
const (
	manifestMarker = "marker.manifest."
	formatMarker   = "marker.format-version."
)

// creating is the name of a file that exists in the directory while a new store
// is being made there.
const creating = "CREATING"

// wayOut ends the errors about damage.
const wayOut = "restore the directory from a backup, or move it away to start with an empty store"

// fileName matches the names of the engine's files.
const fileName = `\d+(?:-\d+)?\.(?:sst|blob|log)|(?:MANIFEST|OPTIONS)-\d+|marker\.(?:manifest|format-version)\.[\w.-]+`

var onlyFileName = regexp.MustCompile(`^(?:` + fileName + `)$`)

// isStoreFile reports whether only the store can have made a file of that name.
// The lock is not one: opening an empty directory makes it as well.
func isStoreFile(name string) bool { return onlyFileName.MatchString(name) }

// inspect lists the store's files in the directory, and reports whether Open
// must make a new store there. A store that lacks a marker is damaged, unless
// its creation was interrupted, in which case it holds no writes and no table.
func inspect(files vfs.FS, dir string) (found []string, fresh bool, err error) {
	names, err := files.List(dir)
	if err != nil {
		return nil, false, fmt.Errorf("data directory %q cannot be listed: %w", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		if isStoreFile(name) {
			found = append(found, files.PathJoin(dir, name))
		}
	}
	tables := slices.ContainsFunc(found, func(name string) bool { return strings.HasSuffix(name, ".sst") })
	if len(found) == 0 || slices.Contains(names, creating) && !tables {
		return found, true, nil
	}
	for _, marker := range []string{manifestMarker, formatMarker} {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, marker) }) {
			return nil, false, damaged(dir, files.PathBase(found[0])+" is there, and "+marker+"* is missing")
		}
	}
	return found, false, nil
}

// beginCreation makes the file that marks a creation under way, and removes the
// files that an interrupted creation left.
func beginCreation(files vfs.FS, dir string, remains []string) error {
	file, err := files.Create(files.PathJoin(dir, creating), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Close(), syncDir(files, dir)); err != nil {
		return err
	}
	for _, name := range remains {
		if err := files.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// endCreation removes the mark of a creation under way: the new store is
// complete.
func endCreation(files vfs.FS, dir string) error {
	if err := files.Remove(files.PathJoin(dir, creating)); err != nil {
		return err
	}
	return syncDir(files, dir)
}

// damaged returns the error about damage in the directory.
func damaged(dir, what string) error {
	return fmt.Errorf("%w: %q: %s; %s", ErrDamaged, dir, what, wayOut)
}

// openingError turns an error of the engine's start into one sentence that
// names the directory and, if it is damage, the file. reading is the file that
// was opened last.
func openingError(dir, reading string, err error) error {
	var errno syscall.Errno
	var path *fs.PathError
	switch {
	case errors.Is(err, ErrDamaged):
		return err
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return fmt.Errorf("%w: %q", ErrNoStore, dir)
	case (errors.As(err, &errno) || errors.As(err, &path)) && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("data directory %q cannot be opened: %w", dir, err)
	}
	return damaged(dir, damagedFile(err, reading)+" is missing or damaged ("+firstLine(err)+")")
}

// Patterns of files in the engine's errors, which name a table only by its
// number.
var (
	namedFile     = regexp.MustCompile(`\b(?:` + fileName + `)`)
	numberedTable = regexp.MustCompile(`\b(?:L\d: |file |table )(\d{6,})\b`)
)

// damagedFile returns the name of the file that the engine's error is about.
func damagedFile(err error, reading string) string {
	text := err.Error()
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		text = info.Path
	}
	if name := namedFile.FindString(text); name != "" {
		return name
	}
	if table := numberedTable.FindStringSubmatch(text); table != nil {
		return table[1] + ".sst"
	}
	return reading
}

// firstLine returns an error's first line, without details and stack traces.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
