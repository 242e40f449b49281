package calendar_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// On the machine of these tests, the time zones with changes of clocks that the table knows are UTC: the data of the
// machine must not count.
func TestMain(m *testing.M) { os.Exit(onAnotherMachine(m.Run)) }

func onAnotherMachine(run func() int) int {
	dir, err := os.MkdirTemp("", "zoneinfo")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// A file of version 1 with one type of local time, of offset 0.
	utc := append([]byte("TZif"), make([]byte, 16)...)
	utc = append(utc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4) // one type, four bytes of names
	utc = append(utc, 0, 0, 0, 0, 0, 0, 'U', 'T', 'C', 0)
	for _, name := range walkedZones {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, utc, 0o600)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	_ = os.Setenv("ZONEINFO", dir)
	summer := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	if zone, err := time.LoadLocation("Europe/Berlin"); err != nil || summer.In(zone).Hour() != 12 {
		fmt.Fprintln(os.Stderr, "the machine has the right time zones:", zone, err)
		return 1
	}
	return run()
}
