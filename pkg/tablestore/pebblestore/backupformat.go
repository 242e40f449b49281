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
	"time"

	"github.com/klauspost/compress/zstd"
)

// A backup is a tar file, compressed with Zstandard: the manifest, the files that it names
// in its order, and the checksums of all of them.
const (
	backupFormat    = 1
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

// backupWriter writes a backup.
type backupWriter struct {
	compressed *zstd.Encoder
	tar        *tar.Writer
	taken      time.Time
	sums       map[string]string
}

// newBackupWriter begins a backup.
func newBackupWriter(w io.Writer, manifest *BackupManifest) (*backupWriter, error) {
	// Tables are compressed already: a higher level gains little. One goroutine does it, so
	// that other requests keep the other processors.
	compressed, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	b := &backupWriter{compressed: compressed, tar: tar.NewWriter(compressed), taken: manifest.TakenAt, sums: map[string]string{}}
	return b, b.addJSON(manifestEntry, manifest)
}

// add adds a file.
func (b *backupWriter) add(file BackupFile, content io.Reader) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Name, Size: file.Bytes, Mode: 0o600, ModTime: b.taken}
	if err := b.tar.WriteHeader(header); err != nil {
		return err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(b.tar, hash), io.LimitReader(content, file.Bytes))
	if err == nil && n < file.Bytes {
		err = io.ErrUnexpectedEOF
	}
	b.sums[file.Name] = hex.EncodeToString(hash.Sum(nil))
	return err
}

func (b *backupWriter) addJSON(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return b.add(BackupFile{Name: name, Bytes: int64(len(text))}, bytes.NewReader(text))
}

// close ends the backup with the checksums.
func (b *backupWriter) close() error {
	err := b.addJSON(checksumsEntry, b.sums)
	return errors.Join(err, b.tar.Close(), b.compressed.Close())
}

// VerifyBackup reads a backup to its end and checks it. progress is told how many bytes of
// the store's files were read, and how many there are; it may be nil. It returns
// [ErrBackup] with the file at fault, and errors of the reader.
func VerifyBackup(r io.Reader, progress func(done, total int64)) (*BackupManifest, error) {
	return readBackup(r, progress, func(_ *BackupFile, content io.Reader) error {
		_, err := io.Copy(io.Discard, content)
		return err
	})
}

// readBackup calls each with every file that the manifest names, and then checks their
// content.
func readBackup(
	r io.Reader, progress func(done, total int64), each func(file *BackupFile, content io.Reader) error,
) (*BackupManifest, error) {
	compressed, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxBackupWindow))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBackup, err)
	}
	defer compressed.Close()
	b := &backupReader{tar: tar.NewReader(compressed), sums: map[string]string{}}
	var manifest BackupManifest
	if err := b.readJSON(manifestEntry, &manifest); err != nil {
		return nil, err
	}
	if err := manifest.check(); err != nil {
		return nil, err
	}
	done, total := int64(0), manifest.Bytes()
	for i := range manifest.Files {
		file := &manifest.Files[i]
		err := b.read(file.Name, func(size int64, content io.Reader) error {
			if size != file.Bytes {
				return badBackup(file.Name, fmt.Errorf("it has %d bytes, and %s says %d", size, manifestEntry, file.Bytes))
			}
			return each(file, readerFunc(func(p []byte) (int, error) {
				n, err := content.Read(p)
				if done += int64(n); progress != nil {
					progress(done, total)
				}
				return n, err
			}))
		})
		if err != nil {
			return nil, err
		}
	}
	return &manifest, b.checkSums(compressed)
}

// backupReader reads the entries of a backup.
type backupReader struct {
	tar  *tar.Reader
	sums map[string]string // of what was read, by name
}

// read reads the next entry, which must be the file of that name. It returns the errors of
// content unwrapped.
func (b *backupReader) read(name string, content func(size int64, r io.Reader) error) error {
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
	err = content(header.Size, readerFunc(func(p []byte) (int, error) {
		n, err := b.tar.Read(p)
		_, _ = hash.Write(p[:n])         // It never fails.
		if err != nil && err != io.EOF { //nolint:errorlint // A reader's end is io.EOF itself.
			err = badBackup(name, err)
		}
		return n, err
	}))
	b.sums[name] = hex.EncodeToString(hash.Sum(nil))
	return err
}

func (b *backupReader) readJSON(name string, into any) error {
	return b.read(name, func(size int64, r io.Reader) error {
		if size > maxBackupEntry {
			return badBackup(name, fmt.Errorf("it has %d bytes", size))
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, into); err != nil {
			return badBackup(name, err)
		}
		return nil
	})
}

// checkSums reads the rest, and compares the entries with their checksums.
func (b *backupReader) checkSums(rest io.Reader) error {
	found, want := b.sums, map[string]string{}
	b.sums = map[string]string{}
	if err := b.readJSON(checksumsEntry, &want); err != nil {
		return err
	}
	for name, sum := range found {
		if want[name] != sum {
			return badBackup(name, errors.New("its content was altered"))
		}
	}
	if _, err := b.tar.Next(); !errors.Is(err, io.EOF) {
		return badBackup(checksumsEntry, cmp.Or(err, errors.New("more data after it")))
	}
	if n, err := io.Copy(io.Discard, rest); n > 0 || err != nil { // The end of the compression has a checksum.
		return badBackup(checksumsEntry, cmp.Or(err, fmt.Errorf("%d bytes after it", n)))
	}
	return nil
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
		return fmt.Errorf("%w: its format is %d, and this program reads %d: use Lucius %s", ErrBackup, m.Format, backupFormat, m.Version)
	case m.Layout != layoutVersion:
		return fmt.Errorf("%w: its rows have layout %d, and this program reads %d: use Lucius %s",
			ErrBackup, m.Layout, layoutVersion, m.Version)
	}
	seen := map[string]bool{}
	for _, file := range m.Files {
		if !isStoreFile(file.Name) || file.Name == openMarkName || file.Bytes < 0 || seen[file.Name] {
			return badBackup(manifestEntry, fmt.Errorf("%q is no file of a store", file.Name))
		}
		seen[file.Name] = true
	}
	return nil
}
