package pebblestore

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/lucius-project/lucius/internal/musttest"
)

// forged returns a backup with that manifest, a file "data" for each name, and the
// checksums of all of them, which alter changes first.
func forged(t *testing.T, manifest *BackupManifest, alter func(sums map[string]string), names ...string) []byte {
	t.Helper()
	var stream bytes.Buffer
	compressed, err := zstd.NewWriter(&stream)
	musttest.NoError(t, err)
	archive, sums := tar.NewWriter(compressed), map[string]string{}
	add := func(name string, content []byte) {
		t.Helper()
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content))})
		if _, errWrite := archive.Write(content); err != nil || errWrite != nil {
			t.Fatal(err, errWrite)
		}
		sum := sha256.Sum256(content)
		sums[name] = hex.EncodeToString(sum[:])
	}
	addJSON := func(name string, value any) {
		t.Helper()
		text, err := json.Marshal(value)
		musttest.NoError(t, err)
		add(name, text)
	}
	addJSON(manifestEntry, manifest)
	for _, name := range names {
		add(name, []byte("data"))
	}
	alter(sums)
	addJSON(checksumsEntry, sums)
	musttest.NoError(t, errors.Join(archive.Close(), compressed.Close()))
	return stream.Bytes()
}

func manifestOf(names ...string) *BackupManifest {
	m := &BackupManifest{Format: backupFormat, Layout: layoutVersion, Version: "v9\x1b[2J"}
	for _, name := range names {
		m.Files = append(m.Files, BackupFile{Name: name, Bytes: 4})
	}
	return m
}

// TestBackupFormat_RefusesWhatNoStoreWrote forges backups with correct checksums.
func TestBackupFormat_RefusesWhatNoStoreWrote(t *testing.T) {
	t.Parallel()
	later, newer := manifestOf(), manifestOf()
	later.Layout, newer.Format = layoutVersion+1, backupFormat+1
	for name, test := range map[string]struct {
		manifest *BackupManifest
		files    []string
		want     string
	}{
		"parent directory": {manifestOf("../000001.log"), []string{"../000001.log"}, `"../000001.log" is no file of a store`},
		"absolute path":    {manifestOf("/000001.log"), []string{"/000001.log"}, "is no file of a store"},
		"subdirectory":     {manifestOf("a/000001.log"), []string{"a/000001.log"}, "is no file of a store"},
		"other file":       {manifestOf("authorized_keys"), []string{"authorized_keys"}, "is no file of a store"},
		"a file twice":     {manifestOf("000001.log", "000001.log"), []string{"000001.log", "000001.log"}, "is no file of a store"},
		"another file":     {manifestOf("000001.log"), []string{"000002.log"}, `000001.log: found "000002.log" in its place`},
		"one file less":    {manifestOf("000001.log", "000002.log"), []string{"000001.log"}, `000002.log: found "checksums.json" in its place`},
		"one file more":    {manifestOf("000001.log"), []string{"000001.log", "000002.log"}, `checksums.json: found "000002.log" in its place`},
		"later layout":     {later, nil, `its rows have layout 7, and this program reads 6: use Lucius "v9\x1b[2J"`},
		"later format":     {newer, nil, `its format is 3, and this program reads 2: use Lucius "v9\x1b[2J"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backup := forged(t, test.manifest, func(map[string]string) {}, test.files...)
			if _, err := VerifyBackup(bytes.NewReader(backup), nil); !errors.Is(err, ErrBackup) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("verify: %v, want %q", err, test.want)
			}
			if _, err := Unpack(bytes.NewReader(backup), RestoreOptions{Dir: t.TempDir()}); !errors.Is(err, ErrBackup) {
				t.Errorf("restore: %v, want ErrBackup", err)
			}
		})
	}
}

// TestBackupFormat_AlteredContentIsNamed has another checksum for a file than that of its
// content.
func TestBackupFormat_AlteredContentIsNamed(t *testing.T) {
	t.Parallel()
	alter := func(sums map[string]string) { sums["000002.log"] = sums[manifestEntry] }
	backup := forged(t, manifestOf("000001.log", "000002.log"), alter, "000001.log", "000002.log")
	if _, err := VerifyBackup(bytes.NewReader(backup), nil); !errors.Is(err, ErrBackup) ||
		!strings.Contains(err.Error(), "000002.log: its content was altered") {
		t.Errorf("verify: %v", err)
	}
}

func TestBackupFormat_AFileThatBecameShorterFailsTheBackup(t *testing.T) {
	t.Parallel()
	open := func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("d")), nil }
	if err := writeBackup(io.Discard, manifestOf("000001.log"), open); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "000001.log") {
		t.Errorf("a file that became shorter: %v", err)
	}
}
