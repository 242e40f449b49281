package pebblestore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The store's own files in its directory. The state says what happens to the directory: a line
// with one of the states, lines of files, each with its size and checksum, and a checksum of
// all of that. It is replaced at once and durably.
//
//	invariant: the directory holds a file of a store ⇒ it holds the state
const (
	lockName  = "LOCK" // It is locked while a store has the directory open.
	stateName = "STATE"
	newSuffix = ".new"       // ends the name of a state that is being written
	stateSum  = "checksum: " // precedes the checksum of the state

	stateCreating  = "creating"  // A start makes a new store, and repeats an interrupted one.
	stateRestoring = "restoring" // A restore makes the store, and can be repeated.
	stateOpen      = "open"      // Or it crashed. The listed manifests still begin as they are listed.
	stateClosed    = "closed"    // An orderly stop: the directory holds exactly the listed files.
)

// Prefixes of the engine's files. Without the first marker, which it makes before a store takes
// its first write, it takes the directory for an empty one and deletes its files.
const (
	manifestMarker = "marker.manifest."
	formatMarker   = "marker.format-version."
	manifestPrefix = "MANIFEST-" // The engine only appends to a manifest.
)

// engineFile matches the names of the engine's files.
const engineFile = `\d+(?:-\d+)?\.(?:sst|blob|log)|(?:MANIFEST|OPTIONS)-\d+|marker\.(?:manifest|format-version)\.[\w.-]+`

var onlyStoreFile = regexp.MustCompile(`^(?:` + engineFile + `|` + stateName + `)$`)

// isStoreFile reports whether only a store makes files of that name; a failed start makes a lock.
func isStoreFile(name string) bool { return onlyStoreFile.MatchString(name) }

func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// folder is the locked directory of a store.
type folder struct {
	files vfs.FS
	dir   string      // Where the engine finds its files.
	path  string      // Where the next start will look: dir before links are resolved.
	lock  fs.FileInfo // The lock file that this process holds.

	mu        sync.Mutex // Held while the state is written. It guards the fields below.
	creating  bool       // The state does not change before the store is made.
	manifests []string   // The lines of the state about manifests.
}

// newFolder returns the folder of a directory that is locked.
func newFolder(files vfs.FS, dir, path string) (d *folder, err error) {
	d = &folder{files: files, dir: dir, path: path}
	d.lock, err = d.stat(files.PathJoin(path, lockName))
	return d, err
}

func (d *folder) stat(name string) (fs.FileInfo, error) {
	if d.files == vfs.Default {
		return os.Stat(name) // Only its result tells two files of one name apart.
	}
	return d.files.Stat(name)
}

// check returns [tablestore.ErrLost] unless the path still leads to the lock of this process.
func (d *folder) check() error { return d.checkFile(d.files.PathJoin(d.path, lockName), d.lock) }

// checkFile returns [tablestore.ErrLost] unless the name still leads to the file opened by it.
func (d *folder) checkFile(name string, opened fs.FileInfo) error {
	info, err := d.stat(name)
	why := "is another file"
	switch {
	case err == nil && (d.files != vfs.Default || os.SameFile(info, opened)):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		why = "is missing"
	case err != nil:
		why = "cannot be read: " + err.Error()
	}
	return fmt.Errorf("%w: %s %s in %q; stop this process, put the directory back as it was or restore a backup, and start again",
		tablestore.ErrLost, d.files.PathBase(name), why, d.path)
}

// damaged returns the error about damage in the directory.
func damaged(dir, what string) error {
	return fmt.Errorf("%w: %q: %s; restore the directory from a backup, or move it away to start with an empty store",
		tablestore.ErrDamaged, dir, what)
}

// inspect checks the directory before the engine changes anything in it, and reports whether
// a new store must be made there, in place of the remains of an earlier attempt.
func (d *folder) inspect() (fresh bool, remains []string, err error) {
	found, err := storeFiles(d.files, d.dir)
	state, list, errState := readState(d.files, d.dir)
	switch {
	case err != nil || errState != nil:
		return false, nil, cmp.Or(err, errState)
	case state == stateRestoring:
		return false, nil, damaged(d.dir, "a restore into it was interrupted")
	case state == "" && len(found) == 0, state == stateCreating && !slices.ContainsFunc(found, isTable):
		return true, found, nil
	case state == "":
		return false, nil, damaged(d.dir, found[0]+" exists, but "+stateName+" is missing")
	}
	for _, marker := range []string{manifestMarker, formatMarker} {
		if !slices.ContainsFunc(found, func(name string) bool { return strings.HasPrefix(name, marker) }) {
			return false, nil, damaged(d.dir, stateName+" exists, but "+marker+"* is missing")
		}
	}
	for _, line := range list {
		name, noted, _ := strings.Cut(line, ": ")
		size := int64(math.MaxInt64)
		if state != stateClosed {
			_, _ = fmt.Sscan(noted, &size) // Without a size, the whole file differs from what is noted.
		}
		now, err := describe(d.files, d.files.PathJoin(d.dir, name), size)
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case missing && state == stateClosed:
			return false, nil, damaged(d.dir, name+" is missing, which was there at the last stop")
		case missing: // It was not in use yet, or the engine reports it.
		case err != nil:
			return false, nil, err
		case now != noted:
			return false, nil, damaged(d.dir, fmt.Sprintf("%s has changed since it was written, from %s to %s", name, noted, now))
		}
		if strings.HasPrefix(name, manifestPrefix) {
			d.manifests = append(d.manifests, line)
		}
		found = slices.DeleteFunc(found, func(other string) bool { return other == name })
	}
	if state == stateClosed && len(found) > 0 {
		return false, nil, damaged(d.dir, found[0]+" was added since the last stop")
	}
	return false, nil, nil
}

// note notes that a store has the directory open, or is made in it.
func (d *folder) note(state string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.creating = state == stateCreating
	return writeState(d.files, d.dir, state, d.manifests)
}

// noteManifest notes a manifest that was synced. Its name becomes durable before the note.
// After an error the last note stays in use, since it still holds.
func (d *folder) noteManifest(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := describe(d.files, name, math.MaxInt64)
	if err != nil || syncDir(d.files, d.dir) != nil {
		return
	}
	if d.manifests = []string{d.files.PathBase(name) + ": " + now}; !d.creating {
		_ = writeState(d.files, d.dir, stateOpen, d.manifests)
	}
}

// writeClosed writes the state of a directory whose store is whole and not open.
func writeClosed(files vfs.FS, dir string) error {
	list, err := storeFiles(files, dir)
	for i, name := range list {
		now, errDescribe := describe(files, files.PathJoin(dir, name), math.MaxInt64)
		list[i], err = name+": "+now, errors.Join(err, errDescribe)
	}
	if err != nil {
		return err
	}
	return writeState(files, dir, stateClosed, list)
}

// storeFiles returns the names of the directory's files of a store, except the state.
func storeFiles(files vfs.FS, dir string) ([]string, error) {
	names, err := files.List(dir)
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return !isStoreFile(name) || name == stateName }), err
}

// describe returns the size and checksum of the beginning of a file. Tables have checksums
// of their own, and are too large to be read at each start.
func describe(files vfs.FS, name string, size int64) (string, error) {
	if isTable(name) {
		info, err := files.Stat(name)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(info.Size(), " bytes"), nil
	}
	file, err := files.Open(name)
	if err != nil {
		return "", err
	}
	hash := crc32.NewIEEE()
	size, err = io.Copy(hash, io.LimitReader(file, size))
	return fmt.Sprintf("%d bytes (checksum %08x)", size, hash.Sum32()), errors.Join(err, file.Close())
}

// readState returns the state of a directory, "" if it has none, and the lines about files.
// A state that an operator writes by hand may lack the checksum, unless it lists all files.
func readState(files vfs.FS, dir string) (state string, list []string, err error) {
	file, err := files.Open(files.PathJoin(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	} else if err != nil {
		return "", nil, err
	}
	data, err := io.ReadAll(file)
	err = errors.Join(err, file.Close())
	text, sum, summed := strings.Cut(string(data), stateSum)
	list = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	state, list = list[0], list[1:]
	known := slices.Contains([]string{stateCreating, stateRestoring, stateOpen, stateClosed}, state)
	whole := sum == fmt.Sprintf("%08x\n", crc32.ChecksumIEEE([]byte(text)))
	if err == nil && (!known || !whole && (summed || state == stateClosed)) {
		err = damaged(dir, stateName+" is damaged")
	}
	return state, list, err
}

// writeState replaces the state of a directory at once and durably.
func writeState(files vfs.FS, dir, state string, list []string) error {
	text := strings.Join(append([]string{state}, list...), "\n") + "\n"
	name := files.PathJoin(dir, stateName)
	file, err := files.Create(name+newSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s%s%08x\n", text, stateSum, crc32.ChecksumIEEE([]byte(text)))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return errors.Join(files.Rename(name+newSuffix, name), syncDir(files, dir))
}

// fence is the file system that the engine uses. It ends the process when an operation fails
// on which acknowledged writes depend, or another directory is at the path. It checks the path
// before each operation on a name, which would take effect there, and after each sync, before
// the writes that share it are acknowledged. The engine survives errors in tables and backups.
type fence struct {
	vfs.FS
	folder *folder
	fatal  func(cause error)      // It does not return.
	armed  atomic.Bool            // It is false during Open, which returns errors.
	read   atomic.Pointer[string] // The store file that was last opened for reading.
	// copying is asked before each write to a backup's copy, by the one that makes it.
	copying func(bytes int) error
	logs    sync.Map // The *atomic.Int64 of how much was written to each log, by name.
}

// check ends the process if the directory is lost, or for the cause if there is one.
func (f *fence) check(cause error) {
	if !f.armed.Load() {
		return
	}
	if lost := f.folder.check(); lost != nil {
		cause = lost
	}
	if cause != nil {
		f.fatal(cause)
		select {} // Nothing more is acknowledged.
	}
}

// judge ends the process if the store does not survive the error.
func (f *fence) judge(name, doing string, err error) error {
	if err != nil && !isTable(name) && !f.folder.inBackup(name) {
		f.check(fmt.Errorf("%s %s: %w", doing, f.PathBase(name), err))
	}
	return err
}

// fenced wraps a file that was opened for writing.
func (f *fence) fenced(name string, file vfs.File, err error) (vfs.File, error) {
	if err == nil && f.folder.inBackup(name) {
		return copiedFile{file, f.copying}, nil
	}
	if f.judge(name, "open", err) != nil {
		return file, err
	}
	opened, err := f.folder.stat(name)
	if f.judge(name, "open", err) != nil {
		return nil, errors.Join(err, file.Close())
	}
	fenced := &fencedFile{File: file, name: name, opened: opened, fence: f}
	if isLog(name) {
		fenced.written = new(atomic.Int64)
		f.logs.Store(name, fenced.written)
	}
	return fenced, nil
}

func (f *fence) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	f.check(nil)
	if base := f.PathBase(name); isStoreFile(base) {
		f.read.Store(&base)
	}
	file, err := f.FS.Open(name, options...)
	if written, inUse := f.logs.Load(name); inUse && err == nil {
		file = &logReader{File: file, left: written.(*atomic.Int64).Load()}
	}
	return file, err
}

func (f *fence) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.check(nil)
	file, err := f.FS.Create(name, category)
	return f.fenced(name, file, err)
}

func (f *fence) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.check(nil)
	f.logs.Delete(oldname)
	file, err := f.FS.ReuseForWrite(oldname, newname, category)
	return f.fenced(newname, file, err)
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	f.check(nil)
	file, err := f.FS.OpenDir(name)
	return f.fenced(name, file, err)
}

func (f *fence) Link(oldname, newname string) error {
	f.check(nil)
	return f.judge(newname, "link", f.FS.Link(oldname, newname))
}

func (f *fence) Rename(oldname, newname string) error {
	f.check(nil)
	return f.judge(newname, "rename", f.FS.Rename(oldname, newname))
}

// Remove implements [vfs.FS]. A file that is left over is harmless.
func (f *fence) Remove(name string) error {
	f.check(nil)
	f.logs.Delete(name)
	return f.FS.Remove(name)
}

func (f *fence) Unwrap() vfs.FS { return f.FS }

// fencedFile is a file that was opened for writing.
type fencedFile struct {
	vfs.File
	name   string
	opened fs.FileInfo // The file at that name when it was opened.
	fence  *fence
	// written is how many bytes of a log were written, nil for other files. The engine writes
	// logs from their beginning to their end.
	written *atomic.Int64
	// invariant: log[:durable] survives a loss of power. The engine writes and syncs a log in one
	// goroutine, and closes it after that one has ended.
	durable int64
}

// Write implements [vfs.File], which allows it to modify p.
func (f *fencedFile) Write(p []byte) (int, error) {
	if f.written != nil {
		stateDurable(p, f.durable)
	}
	n, err := f.File.Write(p)
	if f.written != nil {
		f.written.Add(int64(n))
	}
	return n, f.fence.judge(f.name, "write", err)
}

// The head of a chunk of a log: a checksum of all that follows the size, the size of the
// content, a type, the number of the log, and how much of the log was durable before the chunk
// was written.
const (
	chunkSize      = 4
	chunkType      = 6
	chunkDurable   = 11
	chunkHead      = 19
	chunkFull      = 9 // the first and last of the types of a chunk with such a head
	chunkLast      = 12
	checksumOffset = 0xa282ead8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateDurable writes into the heads of the chunks how much of their log was durable before. After
// a crash the engine takes an unreadable chunk for the torn end of a log, unless a chunk in a later
// block states that it was durable. Pebble 2.1 states far too little: it counts what it wrote
// of the last block of each write, and not the full blocks before it (record.LogWriter.flushLoop).
//
// The engine never splits a chunk between two writes. The rest of a block that has no room for a
// head is zero, and ends the write. In any other format the chunks stay as they are.
func stateDurable(chunks []byte, durable int64) {
	for len(chunks) >= chunkHead && chunks[chunkType] >= chunkFull && chunks[chunkType] <= chunkLast {
		end := chunkHead + int(binary.LittleEndian.Uint16(chunks[chunkSize:]))
		if end > len(chunks) {
			return
		}
		binary.LittleEndian.PutUint64(chunks[chunkDurable:], uint64(durable))
		sum := crc32.Checksum(chunks[chunkType:end], castagnoli)
		binary.LittleEndian.PutUint32(chunks, bits.RotateLeft32(sum, 17)+checksumOffset)
		chunks = chunks[end:]
	}
}

func (f *fencedFile) Sync() error { return f.sync(f.File.Sync) }

func (f *fencedFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *fencedFile) SyncTo(length int64) (full bool, err error) {
	full, err = f.File.SyncTo(length)
	return full, f.fence.judge(f.name, "sync", err)
}

// sync syncs the file, and then checks that the next start will find it at its name.
func (f *fencedFile) sync(sync func() error) error {
	var written int64
	if f.written != nil {
		written = f.written.Load()
	}
	if err := sync(); f.fence.judge(f.name, "sync", err) != nil {
		return err
	}
	if f.written != nil { // Folders are synced by several goroutines at once.
		f.durable = written
	}
	f.fence.check(f.fence.folder.checkFile(f.name, f.opened))
	if strings.HasPrefix(f.fence.PathBase(f.name), manifestPrefix) {
		f.fence.folder.noteManifest(f.name)
	}
	return nil
}

func (f *fencedFile) Close() error { return f.fence.judge(f.name, "close", f.File.Close()) }
