package calendar

import (
	"archive/zip"
	_ "embed" // for the time zone data
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"time"
)

// zoneData is the archive of time zones of the Go release that builds the program. time.LoadLocation would prefer the data of
// the machine.
//
//go:generate sh -c "cat $GOROOT/lib/time/zoneinfo.zip >zoneinfo.gen.zip"
//go:embed zoneinfo.gen.zip
var zoneData string

// archive returns the time zones, a file for each.
var archive = sync.OnceValues(func() (*zip.Reader, error) {
	return zip.NewReader(strings.NewReader(zoneData), int64(len(zoneData)))
})

var (
	zones    sync.Map // name → *time.Location: reading one takes longer than all else here
	zoneName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$`)
)

// Zone returns the time zone of that IANA name, and UTC for none. The error is an [*Error].
func Zone(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), nil //nolint:forcetypeassert // Only this function stores there.
	}
	if name == "Local" || len(name) > 64 || !zoneName.MatchString(name) {
		return nil, invalid("time_zone", "is %q, which is not the IANA name of a time zone, for example Europe/Berlin", name)
	}
	zone, err := readZone(name)
	if err != nil {
		return nil, invalid("time_zone", "is %q, which is not a time zone that this server knows", name)
	}
	zones.Store(name, zone)
	return zone, nil
}

// readZone reads a time zone of the program.
func readZone(name string) (*time.Location, error) {
	files, err := archive()
	if err != nil {
		return nil, err
	}
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}
