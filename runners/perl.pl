# A warm runner for Perl: calls Perl functions for a Headway agent. The protocol is docs/runner-protocol.md.
#
# A function is "/folder/file.pl:name" or "Module:name"; "name" may be "Package.name" for Package::name. Only modules that come
# with Perl are used. A file that changed is loaded again.
use strict;
use warnings;
use JSON::PP ();

my $json = JSON::PP->new->utf8->allow_nonref->canonical;
my $text = JSON::PP->new->utf8->allow_nonref;
open(my $out, '>&', \*STDOUT) or die "no standard output: $!";
$out->autoflush(1);
binmode($out);

our ($task, $attempt, $deadline) = (0, 0, 0);    # of the running function: $main::task ...
my (%loaded, %packages);

sub answer { print {$out} join("\t", @_), "\n" or exit 0 }

package Headway::Runner::Missing { sub new { my ($class, $why) = @_; return bless { why => $why }, $class } }

sub headway::progress {
    my ($done, $total, $words) = @_;
    answer('progress', $task, $done, $total // 1, $text->encode("" . ($words // '')));
    return;
}

sub missing { die Headway::Runner::Missing->new(shift) }

sub load_file {
    my $file = shift;
    my @found = stat $file or missing("there is no file $file on this node");
    my $signature = "$found[9]/$found[7]";
    return $packages{$file} if ($loaded{$file} // '') eq $signature;
    my $package = $packages{$file} //= 'Headway::Script' . scalar keys %packages;
    open(my $handle, '<:raw', $file) or missing("$file cannot be read: $!");
    my $source = do { local $/; <$handle> };
    no warnings 'redefine';
    eval qq{package $package; no warnings 'redefine';\n# line 1 "$file"\n$source\n;1} or missing("loading $file failed: $@");
    $loaded{$file} = $signature;
    return $package;
}

sub load_module {
    my $module = shift;
    (my $path = "$module.pm") =~ s{::|\.}{/}g;
    return $loaded{$module} //= eval { require $path } ? $module =~ s/\./::/gr : missing("loading $module failed: $@");
}

sub find {
    my ($where, $name) = $_[0] =~ /^(.*):([^:]+)$/s or missing("$_[0] names no function");
    my $package = $where =~ m{^/} ? load_file($where) : load_module($where);
    $name =~ s/\./::/g;
    my $found = $package->can($name) // ($name =~ /::/ && defined &{$name} ? \&{$name} : undef);
    return $found // missing("$where has no function $name");
}

sub run {
    my ($id, $function, $input) = @_;
    my $result;
    my $fine = eval {
        my $call = find($function);
        my $value = $json->decode($input);
        $result = $call->(ref $value eq 'ARRAY' ? @$value : defined $value ? $value : ());
        $result = $json->encode($result);
        1;
    };
    return answer('ok', $id, $result) if $fine;
    my $error = $@;
    return answer('missing', $id, $text->encode($error->{why})) if ref $error && ref $error eq 'Headway::Runner::Missing';
    my $type = ref $error || 'die';
    (my $words = "$error") =~ s/\s+\z//;
    return answer('fail', $id, $type, $text->encode($words), $text->encode($words));
}

# What a function prints must not look like an answer: it is sent as text of its task.
package Headway::Runner::Said {
    sub TIEHANDLE { return bless {}, shift }
    sub PRINT     { my $self = shift; main::said(join($, // '', @_) . ($\ // '')); return 1 }
    sub PRINTF    { my ($self, $format, @words) = @_; main::said(sprintf $format, @words); return 1 }
    sub WRITE     { my ($self, $data, $length) = @_; main::said(substr $data, 0, $length); return $length }
    sub FILENO    { return 1 }
    sub BINMODE   { return 1 }
    sub CLOSE     { return 1 }
}
sub said { answer('say', $task, $text->encode($_[0])) }
tie *STDOUT, 'Headway::Runner::Said';

answer('ready', 1, sprintf('perl %vd', $^V));
while (defined(my $line = <STDIN>)) {
    chomp $line;
    (my $word, $task, $attempt, $deadline, my $function, my $input) = split /\t/, $line, 6;
    run($task, $function, $input) if $word eq 'run';
}
