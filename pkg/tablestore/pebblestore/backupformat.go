package pebblestore

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A backup is a tar file, compressed with Zstandard: the manifest, the files that it names
// in its order, and the checksums of all of them.
const (
	backupFormat    = 2
	manifestEntry   = "manifest.json"
	checksumsEntry  = "checksums.json"
	maxBackupEntry  = 64 << 20 // of those two: some 500,000 files
	maxBackupWindow = 64 << 20 // of the decompression, in bytes
)

// ErrBackup is returned for a backup that is cut short or altered, or that another version
// of the program wrote.
var ErrBackup = errors.New("backup cannot be used")

// BackupManifest describes a backup.
type BackupManifest struct {
	Format       int            `json:"format"`
	Layout       int            `json:"layout"` // of the store's rows
	Version      string         `json:"version"`
	TakenAt      time.Time      `json:"taken_at"`
	StoreCreated time.Time      `json:"store_created"`
	StoreOpened  uint64         `json:"store_opened"`        // how often
	Jobs         map[string]int `json:"live_jobs,omitempty"` // by state, as the server counted them
	Files        []BackupFile   `json:"files"`
}

// BackupFile is a file of a store.
type BackupFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// Bytes returns the size of all files.
func (m *BackupManifest) Bytes() (sum int64) {
	for _, file := range m.Files {
		sum += file.Bytes
	}
	return sum
}

// writeBackup writes a backup of the manifest's files.
func writeBackup(w io.Writer, manifest *BackupManifest, open func(name string) (io.ReadCloser, error)) error {
	// Tables are compressed already: a higher level gains little. One goroutine does it, so
	// that other requests keep the other processors.
	compressed, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	archive, sums := tar.NewWriter(compressed), map[string]string{}
	add := func(name string, size int64, content io.Reader) error {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: manifest.TakenAt}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		hash := sha256.New()
		_, err := io.CopyN(io.MultiWriter(archive, hash), content, size)
		sums[name] = hex.EncodeToString(hash.Sum(nil))
		return err
	}
	addJSON := func(name string, value any) error {
		text, err := json.MarshalIndent(value, "", "  ")
		return cmp.Or(err, add(name, int64(len(text)), bytes.NewReader(text)))
	}
	err = addJSON(manifestEntry, manifest)
	for i := 0; i < len(manifest.Files) && err == nil; i++ {
		file := &manifest.Files[i]
		content, errOpen := open(file.Name)
		if err = errOpen; err == nil {
			err = errors.Join(add(file.Name, file.Bytes, content), content.Close())
		}
		if err != nil {
			err = fmt.Errorf("backup of the local store: %s: %w", file.Name, err)
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(addJSON(checksumsEntry, sums), archive.Close(), compressed.Close())
}

// VerifyBackup reads a backup to its end and checks it. progress is told how many bytes of
// the store's files were read, and how many there are; it may be nil. It returns
// [ErrBackup] with the file at fault, and errors of the reader.
func VerifyBackup(r io.Reader, progress func(done, total int64)) (*BackupManifest, error) {
	return readBackup(r, progress, func(_ string, content io.Reader) error {
		_, err := io.Copy(io.Discard, content)
		return err
	})
}

// readBackup calls each with every file that the manifest names, and then checks their
// content.
func readBackup(
	r io.Reader, progress func(done, total int64), each func(name string, content io.Reader) error,
) (*BackupManifest, error) {
	compressed, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxBackupWindow))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBackup, err)
	}
	defer compressed.Close()
	in := &backupReader{tar: tar.NewReader(compressed), sums: map[string]string{}, read: func(int) {}}
	var manifest BackupManifest
	if err := in.entryJSON(manifestEntry, &manifest); err != nil {
		return nil, err
	}
	if err := manifest.check(); err != nil {
		return nil, err
	}
	if done, total := int64(0), manifest.Bytes(); progress != nil {
		in.read = func(n int) {
			done += int64(n)
			progress(done, total)
		}
	}
	for _, file := range manifest.Files {
		err := in.entry(file.Name, func(content io.Reader) error { return each(file.Name, content) })
		if err != nil {
			return nil, err
		}
	}
	in.read = func(int) {}
	found, want := maps.Clone(in.sums), map[string]string{}
	if err := in.entryJSON(checksumsEntry, &want); err != nil {
		return nil, err
	}
	for name, sum := range found {
		if want[name] != sum {
			return nil, badBackup(name, errors.New("its content was altered"))
		}
	}
	if _, err := in.tar.Next(); !errors.Is(err, io.EOF) {
		return nil, badBackup(checksumsEntry, cmp.Or(err, errors.New("more data after it")))
	}
	if n, err := io.Copy(io.Discard, compressed); n > 0 || err != nil { // Its end has a checksum.
		return nil, badBackup(checksumsEntry, cmp.Or(err, fmt.Errorf("%d bytes after it", n)))
	}
	return &manifest, nil
}

// backupReader reads the entries of a backup.
type backupReader struct {
	tar  *tar.Reader
	sums map[string]string // of what was read, by name
	read func(bytes int)   // is told of what is read
}

// entry reads the next entry, which must be the file of that name. It returns the errors of
// content unwrapped.
func (b *backupReader) entry(name string, content func(r io.Reader) error) error {
	header, err := b.tar.Next()
	switch {
	case errors.Is(err, io.EOF):
		return badBackup(name, io.ErrUnexpectedEOF)
	case err != nil:
		return badBackup(name, err)
	case header.Name != name || header.Typeflag != tar.TypeReg:
		return badBackup(name, fmt.Errorf("found %q in its place", header.Name))
	}
	hash := sha256.New()
	err = content(readerFunc(func(p []byte) (int, error) {
		n, err := b.tar.Read(p)
		_, _ = hash.Write(p[:n]) // It never fails.
		b.read(n)
		if err != nil && err != io.EOF { //nolint:errorlint // A reader's end is io.EOF itself.
			err = badBackup(name, err)
		}
		return n, err
	}))
	b.sums[name] = hex.EncodeToString(hash.Sum(nil))
	return err
}

func (b *backupReader) entryJSON(name string, into any) error {
	return b.entry(name, func(r io.Reader) error {
		text, err := io.ReadAll(io.LimitReader(r, maxBackupEntry))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, into); err != nil {
			return badBackup(name, err)
		}
		return nil
	})
}

// badBackup returns the error about an entry of a backup.
func badBackup(name string, err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("it ends early: %w", err)
	case errors.Is(err, zstd.ErrMagicMismatch) && name == manifestEntry:
		err = fmt.Errorf("it is no file of lucius backup: %w", err)
	}
	return fmt.Errorf("%w: %s: %w", ErrBackup, name, err)
}

// check returns [ErrBackup] if this program cannot read such a backup, or must not.
func (m *BackupManifest) check() error {
	switch {
	case m.Format != backupFormat:
		return fmt.Errorf("%w: its format is %d, and this program reads %d: use Lucius %q", ErrBackup, m.Format, backupFormat, m.Version)
	case m.Layout != layoutVersion:
		return fmt.Errorf("%w: its rows have layout %d, and this program reads %d: use Lucius %q",
			ErrBackup, m.Layout, layoutVersion, m.Version)
	}
	seen := map[string]bool{}
	for _, file := range m.Files {
		if !isStoreFile(file.Name) || seen[file.Name] {
			return badBackup(manifestEntry, fmt.Errorf("%q is no file of a store", file.Name))
		}
		seen[file.Name] = true
	}
	return nil
}
