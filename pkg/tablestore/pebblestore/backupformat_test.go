package pebblestore

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// forged returns a backup with that manifest and a file of four bytes for each name.
func forged(t *testing.T, manifest *BackupManifest, names ...string) []byte {
	t.Helper()
	var stream bytes.Buffer
	b, err := newBackupWriter(&stream, manifest)
	for _, name := range names {
		err = errors.Join(err, b.add(BackupFile{Name: name, Bytes: 4}, strings.NewReader("data")))
	}
	if err := errors.Join(err, b.close()); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}

// TestBackupFormat_RefusesWhatNoStoreWrote forges backups with correct checksums.
func TestBackupFormat_RefusesWhatNoStoreWrote(t *testing.T) {
	t.Parallel()
	of := func(names ...string) *BackupManifest {
		m := &BackupManifest{Format: backupFormat, Layout: layoutVersion, Version: "v9"}
		for _, name := range names {
			m.Files = append(m.Files, BackupFile{Name: name, Bytes: 4})
		}
		return m
	}
	later, newer := of(), of()
	later.Layout, newer.Format = layoutVersion+1, backupFormat+1
	negative, larger := of("000001.log"), of("000001.log")
	negative.Files[0].Bytes, larger.Files[0].Bytes = -4, 5
	for name, test := range map[string]struct {
		manifest *BackupManifest
		files    []string
		want     string
	}{
		"parent directory": {of("../000001.log"), []string{"../000001.log"}, `"../000001.log" is no file of a store`},
		"absolute path":    {of("/000001.log"), []string{"/000001.log"}, "is no file of a store"},
		"subdirectory":     {of("a/000001.log"), []string{"a/000001.log"}, "is no file of a store"},
		"other file":       {of("authorized_keys"), []string{"authorized_keys"}, "is no file of a store"},
		"mark of a crash":  {of("OPEN"), []string{"OPEN"}, "is no file of a store"},
		"a file twice":     {of("000001.log", "000001.log"), []string{"000001.log", "000001.log"}, "is no file of a store"},
		"negative size":    {negative, nil, "is no file of a store"},
		"another size":     {larger, []string{"000001.log"}, "it has 4 bytes, and manifest.json says 5"},
		"another file":     {of("000001.log"), []string{"000002.log"}, `000001.log: found "000002.log" in its place`},
		"one file less":    {of("000001.log", "000002.log"), []string{"000001.log"}, `000002.log: found "checksums.json" in its place`},
		"one file more":    {of("000001.log"), []string{"000001.log", "000002.log"}, `checksums.json: found "000002.log" in its place`},
		"later layout":     {later, nil, "its rows have layout 5, and this program reads 4: use Lucius v9"},
		"later format":     {newer, nil, "its format is 2, and this program reads 1: use Lucius v9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backup := forged(t, test.manifest, test.files...)
			if _, err := VerifyBackup(bytes.NewReader(backup), nil); !errors.Is(err, ErrBackup) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("verify: %v, want %q", err, test.want)
			}
			if _, err := Unpack(bytes.NewReader(backup), RestoreOptions{Dir: t.TempDir()}); !errors.Is(err, ErrBackup) {
				t.Errorf("restore: %v, want ErrBackup", err)
			}
		})
	}
}

// TestBackupFormat_AlteredContentIsNamed alters a file, and compresses the result again.
func TestBackupFormat_AlteredContentIsNamed(t *testing.T) {
	t.Parallel()
	manifest := &BackupManifest{Format: backupFormat, Layout: layoutVersion, Files: []BackupFile{{"000001.log", 4}, {"000002.log", 4}}}
	var stream bytes.Buffer
	b, err := newBackupWriter(&stream, manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range manifest.Files {
		if err := b.add(file, strings.NewReader("data")); err != nil {
			t.Fatal(err)
		}
	}
	b.sums["000002.log"] = b.sums[manifestEntry]
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyBackup(&stream, nil); !errors.Is(err, ErrBackup) || !strings.Contains(err.Error(), "000002.log: its content was altered") {
		t.Errorf("verify: %v", err)
	}
	b, err = newBackupWriter(io.Discard, manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.add(manifest.Files[0], strings.NewReader("d")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a file that became shorter: %v", err)
	}
	if err := b.tar.WriteHeader(&tar.Header{Name: "next"}); err == nil {
		t.Error("the backup goes on after it")
	}
}
