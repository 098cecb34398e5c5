package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"nvdra/k8s/client"
)

// A Program is a role as Main sees it.
type Program struct {
	Role   string     // value of --role
	Doc    string     // what it does, in one line
	Common *Common    // filled from flags; required
	Node   *Node      // filled from flags; nil for a role that belongs to no node
	Flags  []cli.Flag // the role's own, with destinations in its configuration

	// Check looks at the role's own values once all are read; nil if there is
	// nothing to check. Its errors count as usage errors.
	Check func() error

	// Start builds the role and runs it, usually by ending in Process.Run. It
	// returns nil when ctx is done, or earlier when the role's work is over.
	Start func(ctx context.Context, p *Process) error
}

// A Process is what Main gives a role that has been started.
type Process struct {
	Log      *zap.Logger
	Registry *prometheus.Registry // served as metrics; register the role's own in it
	Build    Build

	role     string
	common   *Common
	endpoint *endpoint // nil if there is none
}

// Run runs the role's tasks; see the function of that name.
func (p *Process) Run(ctx context.Context, tasks ...Task) error {
	return Run(ctx, p.Log, tasks...)
}

// SetReady says what /readyz asks from now on. Until then the answer is that
// the role is starting. ready returns nil, or an error whose text says what is
// missing; it may be called from several goroutines at once.
func (p *Process) SetReady(ready func() error) {
	if p.endpoint != nil {
		p.endpoint.setReady(ready)
	}
}

// HTTPAddress is where metrics and health are served; empty if nowhere.
func (p *Process) HTTPAddress() string {
	if p.endpoint == nil {
		return ""
	}
	return p.endpoint.listener.Addr().String()
}

// Connect makes the clients for the API server that the flags name. It does not
// talk to it yet.
func (p *Process) Connect() (*client.Clients, error) {
	return client.New(p.common.Kubeconfig, float32(p.common.KubeAPIQPS), p.common.KubeAPIBurst, p.UserAgent())
}

// UserAgent is how this process introduces itself to the API server.
func (p *Process) UserAgent() string {
	return fmt.Sprintf("nvdra/%s (%s)", p.Build.Version, p.role)
}

// Main reads the environment and args, sets up what every role has, and runs
// program until its work is over, it fails, a signal arrives, or ctx is done.
func Main(ctx context.Context, env Env, program Program, args []string) error {
	name := "nvdra --role=" + program.Role
	groups := program.groups()
	var flags []cli.Flag
	for _, g := range groups {
		flags = append(flags, g.flags...)
	}
	values, err := parse(name, flags, args)
	if errors.Is(err, errHelp) {
		printHelp(env.Stdout, name, program.Doc, groups)
		return nil
	}
	if err == nil {
		err = program.check()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", program.Role, err)
	}
	log, libraries, err := newLoggers(env.Stderr, *program.Common)
	if err != nil {
		return err
	}
	if err := bridge(libraries, program.Common.Verbosity); err != nil {
		return err
	}
	defer zap.RedirectStdLog(log.Named("log"))()
	p := &Process{Log: log, Registry: newRegistry(), Build: ThisBuild(), role: program.Role, common: program.Common}
	log.Info("start", zap.String("role", program.Role), zap.String("version", p.Build.Version), zap.String("commit", p.Build.Commit),
		zap.String("go", p.Build.Go), zap.Stringer("featureGates", program.Common.Gates), zap.Any("flags", values))

	ctx, release := withSignals(ctx, log, env.Stderr)
	defer release()
	return program.run(ctx, p)
}

// run starts the endpoint and the role.
func (program Program) run(ctx context.Context, p *Process) error {
	ctx, finish := context.WithCancel(ctx)
	defer finish()
	over := make(chan struct{}) // closed when the role has ended
	tasks := []Task{{Name: program.Role, Run: func(ctx context.Context) error {
		defer close(over)
		if err := program.Start(ctx, p); err != nil {
			return err
		}
		finish() // its work is over, so nothing is missed if the rest goes too
		return nil
	}}}
	if program.Common.HTTPEndpoint != "" {
		e, err := listen(program.Common.HTTPEndpoint, program.Common.MetricsPath, p.Registry, p.Log)
		if err != nil {
			return err
		}
		p.endpoint = e
		p.Log.Info("serve metrics and health", zap.String("address", p.HTTPAddress()))
		tasks = append(tasks, Task{Name: "serve HTTP", Run: func(ctx context.Context) error { return e.run(ctx, over) }})
	}
	if err := Run(ctx, p.Log, tasks...); err != nil {
		return err // whoever called says it, once
	}
	p.Log.Info("end")
	return nil
}

// groups are the sections of the help.
func (program Program) groups() []flagGroup {
	groups := []flagGroup{{title: "Flags of this role:", flags: program.Flags}}
	if program.Node != nil {
		groups = append(groups, flagGroup{"Flags of roles that work on a node:", program.Node.flags()})
	}
	return append(groups, flagGroup{"Flags of every role:", program.Common.flags()})
}

// check reports everything that is wrong with the values.
func (program Program) check() error {
	errs := []error{program.Common.check()}
	if program.Node != nil {
		errs = append(errs, program.Node.check())
	}
	if program.Check != nil {
		if err := program.Check(); err != nil {
			errs = append(errs, usageError{err})
		}
	}
	var found []error
	for _, err := range errs {
		if err != nil {
			found = append(found, err)
		}
	}
	return oneLine(found)
}
