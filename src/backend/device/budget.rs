//! What the system lets this program have of a card. Windows gives each program a budget, which shrinks when others need the
//! card; a driver's figure does not know of it.

use super::{CardFacts, Context, DeviceMemoryInfo, DriverError, Vendor};

/// Bytes of a card for this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub budget_bytes: u64,
    /// In use by this program.
    pub used_bytes: u64,
}

/// A card as the system sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    pub luid: u64,
    /// That of the PCI bus.
    pub vendor_id: u32,
    pub name: String,
    pub budget: Budget,
}

/// A card's memory now: the smaller of the driver's figures and what the system lets this program have.
pub fn memory_of(context: &Context) -> Result<DeviceMemoryInfo, DriverError> {
    Ok(bounded(context.memory_info()?, of_card(context.facts())))
}

fn bounded(memory: DeviceMemoryInfo, budget: Option<Budget>) -> DeviceMemoryInfo {
    let Some(Budget { budget_bytes, used_bytes }) = budget else { return memory };
    DeviceMemoryInfo {
        free_bytes: memory.free_bytes.min(budget_bytes.saturating_sub(used_bytes)),
        total_bytes: memory.total_bytes.min(budget_bytes),
    }
}

/// The budget of a card; `None` where the system has none, or where it cannot be told which adapter the card is.
fn of_card(facts: &CardFacts) -> Option<Budget> {
    matching(&adapters(), facts).map(|adapter| adapter.budget)
}

fn vendor_id(vendor: Vendor) -> u32 {
    match vendor {
        Vendor::Nvidia => 0x10de,
        Vendor::Amd => 0x1002,
    }
}

/// The adapter with the card's number; where the driver does not tell that, the only one of its maker with its name.
fn matching<'a>(adapters: &'a [Adapter], facts: &CardFacts) -> Option<&'a Adapter> {
    if let Some(luid) = facts.luid {
        return adapters.iter().find(|adapter| adapter.luid == luid);
    }
    let alike = |adapter: &&Adapter| adapter.vendor_id == vendor_id(facts.vendor) && adapter.name == facts.name;
    let mut found = adapters.iter().filter(alike);
    found.next().filter(|_| found.next().is_none())
}

#[cfg(not(windows))]
fn adapters() -> Vec<Adapter> {
    vec![]
}

#[cfg(windows)]
fn adapters() -> Vec<Adapter> {
    use windows::Win32::Graphics::Dxgi::{CreateDXGIFactory1, IDXGIFactory1};
    // SAFETY: makes an object that gives itself back.
    let Ok(factory) = (unsafe { CreateDXGIFactory1::<IDXGIFactory1>() }) else { return vec![] };
    // SAFETY: there is no adapter behind the last one, which is an error.
    let all = (0..).map_while(|i| unsafe { factory.EnumAdapters1(i) }.ok());
    all.filter_map(|adapter| described(&adapter)).collect()
}

#[cfg(windows)]
fn described(adapter: &windows::Win32::Graphics::Dxgi::IDXGIAdapter1) -> Option<Adapter> {
    use windows::Win32::Graphics::Dxgi::{DXGI_MEMORY_SEGMENT_GROUP_LOCAL, DXGI_QUERY_VIDEO_MEMORY_INFO, IDXGIAdapter3};
    use windows::core::Interface;
    let mut info = DXGI_QUERY_VIDEO_MEMORY_INFO::default();
    // SAFETY: both only write what they are asked for.
    let desc = unsafe {
        adapter.cast::<IDXGIAdapter3>().ok()?.QueryVideoMemoryInfo(0, DXGI_MEMORY_SEGMENT_GROUP_LOCAL, &mut info).ok()?;
        adapter.GetDesc1().ok()?
    };
    let name = desc.Description.iter().position(|c| *c == 0).map_or(&desc.Description[..], |end| &desc.Description[..end]);
    Some(Adapter {
        luid: u64::from(desc.AdapterLuid.HighPart as u32) << 32 | u64::from(desc.AdapterLuid.LowPart),
        vendor_id: desc.VendorId,
        name: String::from_utf16_lossy(name),
        budget: Budget { budget_bytes: info.Budget, used_bytes: info.CurrentUsage },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::device::{Architecture, MemoryModel};

    const GIB: u64 = 1 << 30;

    fn adapter(luid: u64, vendor_id: u32, name: &str) -> Adapter {
        Adapter { luid, vendor_id, name: name.into(), budget: Budget { budget_bytes: luid * GIB, used_bytes: 0 } }
    }

    fn card(vendor: Vendor, name: &str, luid: Option<u64>) -> CardFacts {
        CardFacts {
            vendor,
            ordinal: 0,
            name: name.into(),
            uuid: None,
            pci: None,
            luid,
            architecture: Architecture::Sm(86),
            multiprocessors: 1,
            warp_threads: 32,
            total_bytes: 24 * GIB,
            drives_display: false,
            integrated: false,
            memory_model: MemoryModel::Wddm,
        }
    }

    #[test]
    fn the_smaller_figure_counts() {
        let driver = DeviceMemoryInfo { free_bytes: 22 * GIB, total_bytes: 24 * GIB };
        let with = |budget, used| bounded(driver, Some(Budget { budget_bytes: budget * GIB, used_bytes: used * GIB }));
        assert_eq!(bounded(driver, None), driver);
        assert_eq!(with(20, 3), DeviceMemoryInfo { free_bytes: 17 * GIB, total_bytes: 20 * GIB });
        assert_eq!(with(30, 1), driver, "a budget beyond what there is changes nothing");
        assert_eq!(with(2, 3).free_bytes, 0, "more in use than the budget");
    }

    #[test]
    fn a_card_is_found_by_its_number_or_as_the_only_one_of_its_name() {
        let adapters = [
            adapter(1, 0x1002, "Radeon 780M"),
            adapter(2, 0x10de, "RTX 4090"),
            adapter(3, 0x10de, "RTX 3090"),
            adapter(4, 0x10de, "RTX 3090"),
        ];
        let found = |vendor, name, luid| matching(&adapters, &card(vendor, name, luid)).map(|a| a.luid);
        assert_eq!(found(Vendor::Nvidia, "RTX 3090", Some(4)), Some(4));
        assert_eq!(found(Vendor::Nvidia, "RTX 4090", Some(9)), None, "a number that no adapter has");
        assert_eq!(found(Vendor::Nvidia, "RTX 4090", None), Some(2));
        assert_eq!(found(Vendor::Nvidia, "RTX 3090", None), None, "two of one name");
        assert_eq!((found(Vendor::Amd, "Radeon 780M", None), found(Vendor::Nvidia, "Radeon 780M", None)), (Some(1), None));
    }
}
