package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// StandbyName is the application_name of a standby, for synchronous_standby_names.
const StandbyName = "standby"

// Standby starts a copy of this server in the folder, which follows it. It stops this server
// for the copy, and starts it again. Stop both; [Server.Promote] makes the copy a primary.
func (s *Server) Standby(ctx context.Context, dir string) (*Server, error) {
	if s.process == nil {
		return nil, errors.New("PostgreSQL: only a server that this program started can have a standby")
	}
	standby := &Server{dir: filepath.Join(dir, "postgres"), native: s.native, as: s.as, Version: s.Version}
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(standby.dir, 0o755)); err != nil { //nolint:gosec // another user must enter
		return nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	at := *s.URL
	at.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	standby.URL = &at
	if err := s.Stop(); err != nil {
		return nil, err
	}
	data := filepath.Join(standby.dir, "data")
	copying := exec.CommandContext(ctx, "cp", "-a", filepath.Join(s.dir, "data"), data) //nolint:gosec // They are this program's folders.
	if output, err := copying.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("PostgreSQL: copy: %w\n%s", err, output), s.Start(ctx))
	}
	err = errors.Join(s.Start(ctx), follow(data, s.URL))
	if err == nil {
		err = standby.Start(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: standby: %w", errors.Join(err, standby.Stop()))
	}
	return standby, nil
}

// follow makes the data folder that of a standby of the primary.
func follow(data string, primary *url.URL) error {
	password, _ := primary.User.Password()
	settings := fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=%s password=%s application_name=%s'\n",
		primary.Hostname(), primary.Port(), primary.User.Username(), password, StandbyName)
	file, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(settings)
	signal := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644) //nolint:gosec // another user reads it
	return errors.Join(err, file.Close(), signal)
}

// Promote makes a standby a primary.
func (s *Server) Promote(ctx context.Context) error { return s.execute(ctx, "SELECT pg_promote()") }
