package config

import (
	"slices"
	"time"
)

// Config is the configuration of one server process.
type Config struct {
	ListenAddr     string
	StorageBackend string
	DataDir        string
	ProtocolsDir   string
	Bus            string
	TopicPrefix    string
	Lanes          int
	Roles          []string

	AckTimeout       time.Duration
	Lease            time.Duration
	StepTimeout      time.Duration
	DispatchBackoff  []time.Duration
	AckBackoff       []time.Duration
	ExecutionBackoff []time.Duration
	Jitter           float64
	MaxAttempts      int

	RetryInterval  time.Duration
	SweepInterval  time.Duration
	PublishTimeout time.Duration
	ShutdownGrace  time.Duration
	// ProtocolsInterval is the time between two looks at the protocol files.
	ProtocolsInterval time.Duration

	MaxBodyBytes    int
	MaxPayloadBytes int
	MaxInflight     int
	RefPrefixes     []string

	Retention   time.Duration
	KeyTTL      time.Duration
	ArchiveDir  string
	StartPaused bool

	LogLevel  string
	LogFormat string
}

// The storage backends and buses that this program knows.
const (
	BackendLocal  = "local"
	BackendMemory = "memory"
	BusQueue      = "queue"
)

// The roles of a process.
const (
	RoleAPI     = "api"
	RoleRelay   = "relay"
	RoleSweeper = "sweeper"
)

// Has reports whether the process has the role.
func (c *Config) Has(role string) bool {
	return slices.Contains(c.Roles, role)
}
